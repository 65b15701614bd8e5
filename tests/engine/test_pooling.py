"""Vectors are transformers' pooled hidden states, and the same bits however a prompt is run."""

from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ComputeType, EngineConfig, KernelChoice
from engine.errors import ContextLimitError, SamplingError
from engine.loading import load_engine
from engine.plan import Chunk, Completion, StepPlan
from engine.pooling import Pooler
from engine.sequence import FinishReason, Pooling, SamplingParams, Sequence

POOLED = SamplingParams(max_tokens=0)
KERNELS = [KernelChoice.NATIVE, KernelChoice.REFERENCE]
CONFIG = EngineConfig(
    dtype=ComputeType.FLOAT32, num_blocks=600, max_sequences=32, max_step_tokens=512, num_threads=2
)
NATIVE = replace(CONFIG, dtype=ComputeType.BFLOAT16, kernels=KernelChoice.NATIVE)
# Of numbers whose squares sum to one: what the order of float32 sums may change.
TOLERANCE = 1e-5

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def a_prompt(index):
    """Return one of many prompts; every fifth begins like the one before."""
    generator = torch.Generator().manual_seed(index - (index % 5 == 4))
    return torch.randint(250, (1 + 13 * index % 90,), generator=generator).tolist()


def a_pooled(index, pooling=Pooling.MEAN, rank=(0.0, 0.0)):
    return Sequence(str(index), a_prompt(index), POOLED, rank, pooling=pooling)


def a_talker(index, max_tokens=20):
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Sequence(f"talker {index}", a_prompt(index), sampling)


def run(engine, sequences):
    """Run sequences together; return the completions by sequence, and how many were preempted."""
    for sequence in sequences:
        engine.add(sequence)
    completions: dict[str, Completion] = {}
    while engine.has_work:
        completions |= {done.sequence_id: done for done in engine.step().finished}
        engine.check_integrity()
    assert engine.capacity().free_blocks == engine.capacity().total_blocks
    return completions


def vectors(folder, sequences, **changes):
    completions = run(load_engine(folder, replace(NATIVE, **changes)), sequences)
    return {name: done.vector for name, done in completions.items() if done.vector is not None}


@pytest.fixture(scope="module")
def theirs(tiny_folder):
    """Return transformers' last hidden states of a prompt, [T, M]."""
    network = transformers.AutoModel.from_pretrained(tiny_folder, dtype=torch.float32)

    @torch.inference_mode()
    def last_hidden_states(prompt_ids):
        return network(torch.tensor([prompt_ids])).last_hidden_state[0]

    return last_hidden_states


def pooled_by(states, pooling):
    vector = states.mean(0) if pooling is Pooling.MEAN else states[-1]
    return (vector / vector.norm()).tolist()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("changes", [{}, {"max_step_tokens": 33}], ids=["in-one-step", "in-chunks"])
def test_vectors_are_transformers_pooled_hidden_states(
    tiny_folder, theirs, kernels, pooling, changes
):
    engine = load_engine(tiny_folder, replace(CONFIG, kernels=kernels, **changes))
    together = [a_pooled(index, pooling) for index in range(12)]

    completions = run(engine, [*together, *(a_talker(index) for index in range(6))])

    for sequence in together:
        expected = pooled_by(theirs(sequence.prompt_ids), pooling)
        vector = completions[sequence.id].vector
        assert vector.tolist() == pytest.approx(expected, abs=TOLERANCE)


def test_an_engine_reports_a_pooled_sequence_as_read_and_nothing_as_made(tiny_folder):
    engine = load_engine(tiny_folder, CONFIG)
    engine.add(a_pooled(7))

    output = engine.step()

    (done,) = output.finished
    assert (done.finish_reason, done.token_ids) == (FinishReason.POOLED, ())
    assert (done.num_prompt_tokens, done.num_output_tokens) == (len(a_prompt(7)), 0)
    assert (output.tokens, output.num_decode_tokens) == ((), 0)
    assert output.num_prompt_tokens == len(a_prompt(7))


@pytest.fixture(scope="module")
def alone(tiny_folder, compiled_kernels):  # noqa: ARG001 it has to be there
    engine = load_engine(tiny_folder, NATIVE)
    return {str(index): run(engine, [a_pooled(index)])[str(index)].vector for index in range(16)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_step_tokens": 64},
        {"max_step_tokens": 5, "max_sequences": 4},
        {"num_threads": 1},
        {"prefix_caching": False},
    ],
    ids=["in-a-batch", "in-chunks", "in-tiny-chunks", "on-one-thread", "uncached"],
)
def test_every_bit_of_a_vector_is_the_same_alone_and_beside_others(tiny_folder, alone, changes):
    talkers = [a_talker(index) for index in range(16)]

    together = vectors(tiny_folder, [*talkers, *map(a_pooled, range(16))], **changes)

    assert together == alone


def test_tokens_are_the_same_beside_pooled_sequences(tiny_folder):
    def answers(sequences):
        completions = run(load_engine(tiny_folder, NATIVE), sequences)
        return [completions[f"talker {index}"].token_ids for index in range(8)]

    by_themselves = answers([a_talker(index) for index in range(8)])
    in_company = answers(
        [a_talker(index) for index in range(8)] + [a_pooled(index) for index in range(16)]
    )

    assert in_company == by_themselves


def test_a_preempted_sequence_begins_anew_and_comes_to_the_same_vector(tiny_folder, alone):
    engine = load_engine(
        tiny_folder, replace(NATIVE, num_blocks=8, max_step_tokens=16, max_sequences=4)
    )
    slow = a_pooled(13, rank=(2.0, 0.0))
    engine.add(slow)
    engine.step()
    engine.add(Sequence("urgent", [9] * 100, SamplingParams(max_tokens=20)))

    preempted = engine.step().preempted_ids
    completions = run(engine, [])

    assert preempted == (slow.id,)
    assert completions[slow.id].num_preemptions == 1
    assert completions[slow.id].vector == alone[slow.id]


def test_a_mean_reads_a_cached_prefix_again_and_leaves_one_behind(tiny_folder):
    engine = load_engine(tiny_folder, NATIVE)
    prompt_ids = [index % 250 for index in range(100)]
    names = iter("abc")

    def completed(sampling, pooling):
        sequence = Sequence(next(names), prompt_ids, sampling, pooling=pooling)
        return run(engine, [sequence])[sequence.id]

    first = completed(POOLED, Pooling.MEAN)
    again = completed(POOLED, Pooling.MEAN)
    talker = completed(SamplingParams(max_tokens=1), None)

    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 0)
    assert again.vector == first.vector
    assert talker.num_cached_tokens == 96


def test_the_last_token_alone_is_the_same_with_a_cached_prefix(tiny_folder):
    engine = load_engine(tiny_folder, NATIVE)
    prompt_ids = [index % 250 for index in range(100)]

    first, again = (
        run(engine, [Sequence(name, prompt_ids, POOLED, pooling=Pooling.LAST)])[name]
        for name in ("first", "again")
    )

    assert again.num_cached_tokens == 96
    assert again.vector == first.vector


def test_an_aborted_sequence_leaves_no_block_and_no_sum(tiny_folder, alone):
    engine = load_engine(tiny_folder, replace(NATIVE, max_step_tokens=16, max_sequences=4))
    engine.add(a_pooled(13))
    engine.step()

    assert engine.abort("13")

    assert not engine.has_work
    assert run(engine, [a_pooled(13)])["13"].vector == alone["13"]


def test_a_prompt_may_fill_the_whole_context_and_no_more(tiny_folder):
    engine = load_engine(tiny_folder, replace(CONFIG, max_context=64))

    filled = run(engine, [Sequence("a", [1] * 64, POOLED, pooling=Pooling.MEAN)])

    assert filled["a"].vector is not None
    with pytest.raises(ContextLimitError):
        engine.add(Sequence("b", [1] * 65, POOLED, pooling=Pooling.MEAN))


def test_a_sequence_that_neither_samples_nor_is_pooled_is_refused():
    with pytest.raises(SamplingError, match="max_tokens"):
        Sequence("a", [1], POOLED)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_wherever_chunks_end_a_sum_has_the_same_bits(sizes, seed):
    sequence = Sequence("a", [1] * sum(sizes), POOLED, pooling=Pooling.MEAN)
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(sum(sizes), 24, generator=generator) * 50
    whole = Pooler().pool(states, StepPlan((Chunk(sequence, 0, sum(sizes)),)))

    pooler, start, found = Pooler(), 0, {}
    for size in sizes:
        plan = StepPlan((Chunk(sequence, start, size),))
        found = pooler.pool(states[start : start + size], plan)
        start += size

    assert found == whole


def test_zeros_stay_zeros():
    sequence = Sequence("a", [1], POOLED, pooling=Pooling.MEAN)

    vector = Pooler().pool(torch.zeros(1, 4), StepPlan((Chunk(sequence, 0, 1),)))["a"]

    assert vector.tolist() == [0.0] * 4
