"""With compiled kernels a sequence has the same bits whatever runs beside it, in half precision."""

from dataclasses import replace

import pytest
import torch

from engine.config import CacheType, ComputeType, EngineConfig, KernelChoice
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence

NUM_TOKENS = 16
CONFIG = EngineConfig(
    dtype=ComputeType.BFLOAT16,
    kernels=KernelChoice.NATIVE,
    num_blocks=600,
    max_sequences=64,
)

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def a_sequence(index):
    """Return one of 64 sequences; some share a beginning, every other one draws by chance."""
    generator = torch.Generator().manual_seed(index % 40)
    length = 3 + 11 * index % 90
    prompt_ids = torch.randint(250, (length,), generator=generator).tolist()
    sampling = SamplingParams(
        max_tokens=NUM_TOKENS,
        temperature=float(index % 2),
        seed=index,
        num_logprobs=3,
        ignore_eos=True,
    )
    return Sequence(str(index), prompt_ids, sampling)


def answers(folder, indices, **changes):
    """Run sequences together; return each one's tokens with their exact log probabilities."""
    engine = load_engine(folder, replace(CONFIG, **changes))
    for index in indices:
        engine.add(a_sequence(index))
    tokens: dict[str, list[object]] = {str(index): [] for index in indices}
    num_preempted = 0
    while engine.has_work:
        output = engine.step()
        num_preempted += len(output.preempted_ids)
        for token in output.tokens:
            tokens[token.sequence_id].append((token.token_id, token.logprobs))
    engine.check_integrity()
    return tokens, num_preempted


@pytest.fixture(scope="module", params=[*CacheType])
def kv_dtype(request):
    return request.param


@pytest.fixture(scope="module")
def alone(tiny_folder, kv_dtype, compiled_kernels):  # noqa: ARG001 it has to be there
    """Return the answers of 16 sequences, each run in an engine of its own."""
    single = [answers(tiny_folder, [index], kv_dtype=kv_dtype)[0] for index in range(16)]
    return {name: tokens for answer in single for name, tokens in answer.items()}


@pytest.mark.parametrize(
    ("indices", "changes"),
    [
        (range(8), {}),
        (range(64), {}),
        (range(64), {"max_step_tokens": 64}),
        (range(16), {"max_step_tokens": 5, "max_sequences": 4}),
        (range(64), {"num_threads": 1}),
        (range(64), {"prefix_caching": False}),
    ],
    ids=["in-8", "in-64", "in-chunks", "in-tiny-chunks", "on-one-thread", "uncached"],
)
def test_every_bit_is_the_same_alone_and_in_company(tiny_folder, kv_dtype, alone, indices, changes):
    together, _ = answers(tiny_folder, indices, kv_dtype=kv_dtype, **changes)

    compared = alone.keys() & together.keys()
    assert len(compared) >= 8
    assert {name: together[name] for name in compared} == {name: alone[name] for name in compared}


def test_every_bit_is_the_same_after_preemption(tiny_folder, kv_dtype, alone):
    crowded = {"num_blocks": 16, "expected_output_share": 0.0, "kv_dtype": kv_dtype}

    together, num_preempted = answers(tiny_folder, range(16), **crowded)

    assert num_preempted > 0
    assert together == alone


def test_every_bit_is_the_same_with_a_cached_prefix(tiny_folder, kv_dtype, alone):
    engine = load_engine(tiny_folder, replace(CONFIG, kv_dtype=kv_dtype))
    tokens: dict[str, list[object]] = {"first": [], "again": []}
    for name in tokens:
        sequence = a_sequence(14)
        sequence.id = name
        engine.add(sequence)
        while engine.has_work:
            for token in engine.step().tokens:
                tokens[name].append((token.token_id, token.logprobs))

    assert sequence.num_cached > 0
    assert tokens["again"] == tokens["first"] == alone["14"]
