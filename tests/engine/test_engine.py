import subprocess
import sys
from dataclasses import replace

import pytest

from engine.config import CacheType, ComputeType, EngineConfig, KernelChoice
from engine.errors import (
    CacheLimitError,
    ContextLimitError,
    DuplicateSequenceError,
    EmptyPromptError,
    MemoryBudgetError,
    TokenIdError,
)
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence
from tests.support.loading_memory import write_large_model
from tests.support.long_run import run_many


def a_config(**changes):
    return replace(
        EngineConfig(dtype=ComputeType.FLOAT32, num_blocks=16, max_sequences=4), **changes
    )


@pytest.fixture
def engine(tiny_folder):
    return load_engine(tiny_folder, a_config())


def a_sequence(name="a", prompt_ids=(1, 2, 3), max_tokens=4):
    return Sequence(name, list(prompt_ids), SamplingParams(max_tokens=max_tokens, ignore_eos=True))


@pytest.mark.parametrize(
    ("sequence", "error", "words"),
    [
        (a_sequence(prompt_ids=()), EmptyPromptError, "no tokens"),
        (a_sequence(prompt_ids=(1, 258)), TokenIdError, "token 258 at index 1"),
        (a_sequence(prompt_ids=(-1,)), TokenIdError, "token -1 at index 0"),
        (a_sequence(max_tokens=600), ContextLimitError, "3 prompt tokens and max_tokens 600"),
        (a_sequence(max_tokens=300), CacheLimitError, "303 tokens exceed"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(engine, sequence, error, words):
    with pytest.raises(error, match=words):
        engine.add(sequence)

    assert not engine.has_work


def test_an_id_can_only_be_in_the_engine_once(engine):
    engine.add(a_sequence("a"))

    with pytest.raises(DuplicateSequenceError):
        engine.add(a_sequence("a"))


def test_a_sequence_that_fills_the_context_exactly_runs(tiny_folder, run_all):
    engine = load_engine(tiny_folder, a_config(max_context=32))

    completion = run_all(engine, [a_sequence(prompt_ids=[5] * 31, max_tokens=1)])["a"]

    assert len(completion.token_ids) == 1


def test_a_step_reports_what_it_did(engine):
    engine.add(a_sequence("a"))

    output = engine.step()

    assert [token.sequence_id for token in output.tokens] == ["a"]
    assert (output.batch_size, output.num_prompt_tokens, output.num_decode_tokens) == (1, 2, 1)
    assert output.finished == ()
    assert output.duration_s > 0


def test_tokens_handed_out_one_by_one_are_the_answer(engine):
    engine.add(a_sequence("a"))
    outputs = [engine.step() for _ in range(4)]

    streamed = tuple(token.token_id for output in outputs for token in output.tokens)

    assert streamed == outputs[-1].finished[0].token_ids


def test_a_step_without_work_does_nothing(engine):
    output = engine.step()

    assert output.tokens == output.finished == ()
    assert output.batch_size == 0


def test_abort_frees_slot_and_blocks_within_the_step(engine):
    engine.add(a_sequence("a"))
    engine.step()
    before = engine.capacity()

    assert engine.abort("a")

    assert (before.running, before.free_slots, before.free_blocks) == (1, 3, 15)
    after = engine.capacity()
    assert (after.running, after.free_slots, after.free_blocks) == (0, 4, 16)
    assert not engine.abort("a")


def test_the_cache_takes_what_the_memory_budget_leaves(tiny_folder):
    budget = 4 << 20
    engine = load_engine(tiny_folder, a_config(num_blocks=None, memory_budget_bytes=budget))

    memory = engine.facts.memory
    assert memory is not None
    block_bytes = 2 * 2 * 2 * 16 * 16 * 4  # K and V, layers, heads, head size, tokens, float32
    file_bytes = (tiny_folder / "model.safetensors").stat().st_size
    assert 0.9 * file_bytes < memory.weights_bytes < file_bytes  # the file has a header too
    assert memory.cache_bytes == engine.limits.num_blocks * block_bytes
    spent = memory.weights_bytes + memory.activation_bytes + memory.reserved_bytes
    assert budget - block_bytes < spent + memory.cache_bytes <= budget


def test_a_cache_of_bytes_holds_nearly_twice_the_tokens(tiny_folder):
    budget = a_config(num_blocks=None, memory_budget_bytes=8 << 20, dtype=ComputeType.BFLOAT16)

    wide = load_engine(tiny_folder, budget).facts
    narrow = load_engine(tiny_folder, replace(budget, kv_dtype=CacheType.INT8)).facts

    assert (wide.kv_dtype, narrow.kv_dtype) == ("bfloat16", "int8")
    assert wide.memory is not None
    assert narrow.memory is not None
    # Heads of 16 dimensions are small: a scale of 4 bytes beside 16 bytes, instead of 32.
    assert narrow.memory.num_blocks == pytest.approx(32 / 20 * wide.memory.num_blocks, abs=2)
    one_block = wide.memory.cache_bytes / wide.memory.num_blocks
    assert narrow.memory.cache_bytes == pytest.approx(wide.memory.cache_bytes, abs=one_block)


def test_a_budget_that_holds_no_whole_context_is_refused_with_the_numbers(tiny_folder):
    with pytest.raises(MemoryBudgetError) as refused:
        load_engine(tiny_folder, a_config(num_blocks=None, memory_budget_bytes=1 << 20))

    assert refused.value.needed_bytes > refused.value.budget_bytes == 1 << 20


def test_an_engine_tells_what_it_runs_on(tiny_folder):
    engine = load_engine(tiny_folder, a_config(kernels=KernelChoice.REFERENCE))

    assert engine.facts.kernels.startswith("reference")
    assert engine.facts.dtype == "float32"


def test_a_long_crowded_run_with_aborts_leaks_nothing(tiny_folder):
    run = run_many(tiny_folder, num_requests=400)

    assert run.num_completed + run.num_aborted == 400
    assert run.num_aborted > 20
    assert run.num_preempted > 10
    assert run.final_memory_bytes - run.early_memory_bytes < 16 << 20


@pytest.mark.usefixtures("compiled_kernels")
def test_loading_takes_little_more_than_the_weights(tmp_path):
    folder = write_large_model(tmp_path / "model", num_layers=2)
    command = [sys.executable, "-m", "tests.support.loading_memory", str(folder)]

    done = subprocess.run(command, check=True, capture_output=True, text=True)

    assert 0.9 < float(done.stdout.split()[-1]) < 1.2
