"""The oracle: greedy answers are transformers' answers, and the same however a sequence is run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from engine.config import ComputeType, EngineConfig, KernelChoice
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence
from tests.support.tiny_model import write_tiny_model

ORACLE = json.loads((Path(__file__).parent / "oracle.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.usefixtures("compiled_kernels")

# Where transformers' own best token leads by less, the order of a sum may decide.
SMALLEST_MARGIN = 1e-4


def a_config(**changes):
    settings = EngineConfig(dtype=ComputeType.FLOAT32, max_sequences=32, num_threads=2)
    return replace(settings, **changes)


def sequences_of(answers):
    return [
        Sequence(str(index), answer["prompt_ids"], SamplingParams(max_tokens=ORACLE["max_tokens"]))
        for index, answer in enumerate(answers)
    ]


def count_close_calls(completions, answers):
    """Compare with the oracle; return how many answers part where its margin is next to nothing."""
    num_close_calls = 0
    for index, answer in enumerate(answers):
        completion = completions[str(index)]
        ours, theirs = list(completion.token_ids), answer["output_ids"]
        if ours == theirs and completion.finish_reason == answer["finish_reason"]:
            continue
        pairs = enumerate(zip(ours, theirs, strict=False))
        parted_at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        margin = answer["margins"][parted_at]
        assert margin < SMALLEST_MARGIN, f"answer {index} parts at {parted_at}, margin {margin}"
        num_close_calls += 1
    return num_close_calls


def test_the_oracle_holds_at_least_sixty_prompts():
    assert len(ORACLE["answers"]) >= 60


@pytest.fixture(scope="module")
def load(model_folder):
    return lambda **changes: load_engine(model_folder, a_config(**changes))


@pytest.mark.real_model
@pytest.mark.timeout(240)
def test_prompts_alone_are_answered_as_transformers_does(load, run_all):
    engine = load(max_sequences=1)
    answers = ORACLE["answers"][::3]

    completions = run_all(engine, sequences_of(answers))

    report("alone", count_close_calls(completions, answers))


@pytest.mark.real_model
@pytest.mark.timeout(240)
def test_a_mixed_batch_is_answered_as_transformers_does(load, run_all):
    engine = load()
    answers = ORACLE["answers"]

    completions = run_all(engine, sequences_of(answers))

    report(f"in a batch on {engine.facts.kernels} kernels", count_close_calls(completions, answers))


@pytest.mark.real_model
@pytest.mark.timeout(240)
def test_without_compiled_kernels_answers_are_transformers_too(load, run_all):
    # One thread: torch's own waits for each other at every operation, and stall on a busy machine.
    engine = load(kernels=KernelChoice.REFERENCE, num_threads=1)
    answers = ORACLE["answers"][::3]

    completions = run_all(engine, sequences_of(answers))

    report(f"in a batch on {engine.facts.kernels} kernels", count_close_calls(completions, answers))


@pytest.mark.real_model
@pytest.mark.timeout(240)
def test_prompts_in_chunks_are_answered_as_transformers_does(load, run_all):
    engine = load(max_step_tokens=48)
    answers = ORACLE["answers"]

    completions = run_all(engine, sequences_of(answers))

    report("in chunks", count_close_calls(completions, answers))


@pytest.mark.real_model
@pytest.mark.timeout(240)
def test_preempted_sequences_are_answered_as_transformers_does(load, run_all):
    engine = load(num_blocks=48, expected_output_share=0.0)
    answers = ORACLE["answers"]

    completions = run_all(engine, sequences_of(answers))

    assert sum(completion.num_preemptions for completion in completions.values()) > 10
    report("preempted", count_close_calls(completions, answers))


def report(how, num_close_calls):
    print(f"{how}: {num_close_calls} answers part where the margin is below {SMALLEST_MARGIN}")  # noqa: T201


def prompts(num_prompts, vocab_size=250):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(vocab_size, (1 + 7 * index % 50,), generator=generator).tolist()
        for index in range(num_prompts)
    ]


def their_answers(folder, num_tokens=12):
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    answers = {}
    for index, prompt in enumerate(prompts(12)):
        ids = network.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=num_tokens,
            do_sample=False,
        )
        answers[str(index)] = tuple(ids[0, len(prompt) :].tolist())
    return answers


def our_answers(engine, run_all, num_tokens=12):
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    sequences = [Sequence(str(index), prompt, sampling) for index, prompt in enumerate(prompts(12))]
    return {name: done.token_ids for name, done in run_all(engine, sequences).items()}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": True},
        {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 20},
        {"num_key_value_heads": 4},
        {"rope_parameters": LLAMA3},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}},
    ],
    ids=["plain", "tied", "odd-heads", "one-kv-head-each", "llama3-rope", "linear-rope"],
)
def test_random_llamas_answer_as_in_transformers(tmp_path, run_all, settings):
    folder = write_tiny_model(tmp_path / "model", **settings)
    engine = load_engine(folder, a_config(num_blocks=64))

    assert our_answers(engine, run_all) == their_answers(folder)


@pytest.mark.parametrize(
    "how",
    [
        {"max_sequences": 1},
        {"max_step_tokens": 5, "max_sequences": 4},
        {"num_blocks": 6, "expected_output_share": 0.0},
        {"prefix_caching": False},
        {"block_size": 2, "num_blocks": 200},
        {"dtype": ComputeType.AUTO},
        {"kernels": KernelChoice.REFERENCE},
    ],
    ids=["alone", "chunked", "preempted", "uncached", "small-blocks", "stored-type", "plain"],
)
def test_an_answer_does_not_depend_on_how_it_is_run(tiny_folder, run_all, how):
    together = our_answers(load_engine(tiny_folder, a_config(num_blocks=64)), run_all)
    engine = load_engine(tiny_folder, a_config(**({"num_blocks": 64} | how)))

    assert our_answers(engine, run_all) == together


def test_a_cached_prefix_does_not_change_the_answer(tiny_folder, run_all):
    engine = load_engine(tiny_folder, a_config(num_blocks=64))
    first = our_answers(engine, run_all)

    assert our_answers(engine, run_all) == first
