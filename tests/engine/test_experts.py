"""Layers of experts: what they mean, that neighbours change no bit, and what they take."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import ComputeType, EngineConfig, KernelChoice
from engine.errors import UnsupportedModelError
from engine.kernels.choice import choose_kernels
from engine.kernels.interface import Experts, FeedForward
from engine.kernels.native import NativeKernels
from engine.loading import load_engine
from engine.model.config import Activation, Quantisation, Scheme
from engine.quantize import Lessons, quantise_folder
from engine.sequence import SamplingParams, Sequence
from engine.step_buffers import StepSizes
from tests.support.family_models import write_family_model

CPU = torch.device("cpu")
SIZES = StepSizes(num_tokens=64, num_sequences=8, blocks_per_sequence=4)
WIDTH, INNER = 24, 20

pytestmark = pytest.mark.usefixtures("compiled_kernels")
every_kind = pytest.mark.parametrize("kind", [KernelChoice.NATIVE, KernelChoice.REFERENCE])
some = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def some_kernels(kind):
    return choose_kernels(EngineConfig(kernels=kind), torch.float32, CPU, SIZES)


def experts_of(kernels, router, halves, **kind):
    """Lay experts out that share nothing with the tensors they are made of."""
    return Experts(
        kernels.pack(router.clone(), None, None),
        tuple(
            FeedForward(
                kernels.pack(gate_up.clone(), None, Activation.SILU),
                kernels.pack(down.clone(), None, None),
            )
            for gate_up, down in halves
        ),
        **kind,
    )


def add(kernels, x, experts):
    """Return what a layer of experts adds to zeros."""
    residual = torch.zeros(len(x), WIDTH)
    kernels.experts_add(x, experts, residual)
    if isinstance(kernels, NativeKernels):
        kernels.run(range(kernels.num_recorded), len(x), 1, 0)
    return residual


def a_layer(seed, num_experts):
    """Return rows, a router and the halves of experts."""
    generator = torch.Generator().manual_seed(seed)
    num_rows = int(torch.randint(1, 40, (), generator=generator))
    x, router = (torch.randn(n, WIDTH, generator=generator) for n in (num_rows, num_experts))
    halves = [
        (
            torch.randn(2 * INNER, WIDTH, generator=generator) / 4,
            torch.randn(WIDTH, INNER, generator=generator) / 4,
        )
        for _ in range(num_experts)
    ]
    return x, router, halves


def through(x, gate_up, down):
    """Return rows after one expert."""
    gate, up = (x @ gate_up.T).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up @ down.T


@every_kind
@some
@given(st.integers(0, 2**31), st.integers(1, 7), st.booleans(), st.booleans())
def test_a_row_is_the_sum_of_its_likeliest_experts(kind, seed, num_chosen, renormalised, shared):
    x, router, halves = a_layer(seed, num_experts=7 + shared)
    kernels = some_kernels(kind)
    experts = experts_of(
        kernels,
        router,
        halves,
        num_chosen=num_chosen,
        is_renormalised=renormalised,
        has_shared=shared,
    )

    added = add(kernels, x, experts)

    scores = x @ router.T
    shares = scores[:, :7].softmax(-1)
    shares = shares * (shares >= shares.sort(-1, descending=True).values[:, num_chosen - 1, None])
    if renormalised:
        shares = shares / shares.sum(-1, keepdim=True)
    shares = torch.cat((shares, scores[:, 7:].sigmoid()), -1)
    outs = torch.stack([through(x, *half) for half in halves], -1)  # [T, M, E]
    torch.testing.assert_close(added, (outs * shares[:, None]).sum(-1), rtol=1e-4, atol=1e-4)


@every_kind
def test_experts_that_no_row_chose_are_not_computed(kind):
    x, router, halves = a_layer(seed=1, num_experts=3)
    x[:, 0], router[:] = 1.0, 0.0
    router[:, 0] = torch.tensor([3.0, -5.0, 4.0])
    halves[1] = tuple(torch.full_like(half, float("nan")) for half in halves[1])
    kernels = some_kernels(kind)
    experts = experts_of(
        kernels, router, halves, num_chosen=2, is_renormalised=True, has_shared=False
    )

    assert add(kernels, x, experts).isfinite().all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_family_model(tmp_path_factory.mktemp("experts") / "model", "qwen2-moe")


def a_sequence(index):
    ids = torch.randint(250, (5 + 7 * index,), generator=torch.Generator().manual_seed(index))
    sampling = SamplingParams(max_tokens=8, num_logprobs=3, ignore_eos=True)
    return Sequence(str(index), ids.tolist(), sampling)


def answers(folder, indices, **changes):
    """Run sequences together; return each one's tokens with their exact log probabilities."""
    config = EngineConfig(dtype=ComputeType.BFLOAT16, kernels=KernelChoice.NATIVE, num_blocks=100)
    engine = load_engine(folder, replace(config, **changes))
    for index in indices:
        engine.add(a_sequence(index))
    tokens: dict[str, list[object]] = {str(index): [] for index in indices}
    while engine.has_work:
        for token in engine.step().tokens:
            tokens[token.sequence_id].append((token.token_id, token.logprobs))
    return tokens


@pytest.mark.parametrize(
    "changes",
    [{}, {"max_step_tokens": 7, "max_sequences": 4}, {"num_threads": 1}],
    ids=["together", "in-chunks", "on-one-thread"],
)
def test_every_bit_is_the_same_whatever_experts_the_neighbours_choose(folder, changes):
    alone = answers(folder, [3]) | answers(folder, [7])

    together = answers(folder, range(8), **changes)

    assert {name: together[name] for name in alone} == alone


def test_the_plan_counts_all_experts(folder):
    config = EngineConfig(dtype=ComputeType.FLOAT32, num_blocks=8)

    memory = load_engine(folder, config).facts.memory

    assert memory is not None
    file_bytes = (folder / "model.safetensors").stat().st_size
    assert 0.97 * file_bytes < memory.weights_bytes < file_bytes  # the file has a header too


def test_models_of_experts_are_not_quantised(folder, tmp_path):
    int8 = Quantisation(Scheme.INT8, group_size=None)

    with pytest.raises(UnsupportedModelError, match="quantising a model of experts"):
        quantise_folder(folder, tmp_path / "int8", int8, Lessons([[1]], 1, max_rise=None))

    assert list(tmp_path.iterdir()) == []
