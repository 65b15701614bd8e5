"""The kernels for a GPU mean what the plain ones mean, as Triton's interpreter runs them.

Not in bfloat16: the interpreter multiplies the bits of such numbers. Compiling is no part of this
either; `python -m ops.bench.device_check` runs the same cases where there is a device.
"""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton.kernels import TritonKernels
from ops.bench.kernel_cases import SHAPES, CaseMaker, KernelCase

types = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
seeds = given(st.integers(0, 2**31))
few = settings(max_examples=2, deadline=None)


@pytest.fixture(autouse=True)
def poisoned_results() -> Iterator[None]:
    """Have torch fill new memory with NaN, so that what a kernel leaves out is seen."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def a_maker(dtype, seed):
    return CaseMaker(dtype, torch.device("cpu"), seed)


def assert_agree(case: KernelCase, dtype):
    error = case.error(TritonKernels(dtype), ReferenceKernels(dtype, is_packed=False))
    assert error <= case.tolerance, case.name


@types
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@few
@given(st.integers(0, 2**31), st.sampled_from([1, 12]))
def test_rotation_and_attention_agree_on_poisoned_caches(dtype, shape, seed, longest_chunk):
    assert_agree(a_maker(dtype, seed).attention("attention", shape, longest_chunk), dtype)


@types
@pytest.mark.parametrize(
    "shape", [SHAPES["one-each"], SHAPES["window"]], ids=["one-each", "window"]
)
@few
@seeds
def test_attention_over_a_cache_of_bytes_agrees(dtype, shape, seed):
    assert_agree(a_maker(dtype, seed).attention("bytes", shape, 12, in_bytes=True), dtype)


@types
@few
@seeds
def test_embeddings_and_norms_agree(dtype, seed):
    for case in a_maker(dtype, seed).rows():
        assert_agree(case, dtype)


@types
@few
@seeds
def test_products_agree(dtype, seed):
    for case in a_maker(dtype, seed).products():
        assert_agree(case, dtype)


@types
@few
@seeds
def test_layers_of_experts_agree(dtype, seed):
    assert_agree(a_maker(dtype, seed).experts(), dtype)


@types
@few
@seeds
def test_scores_and_the_best_of_them_agree(dtype, seed):
    for case in a_maker(dtype, seed).heads():
        assert_agree(case, dtype)


def test_a_step_that_failed_leaves_nothing_to_be_added_to_the_next():
    kernels = TritonKernels(torch.float32)
    (embed, *_) = a_maker(torch.float32, seed=1).rows()
    weight = kernels.pack(torch.ones(3, 3), None, None)
    kernels.linear_add(torch.ones(2, 3), weight, torch.zeros(2, 3))

    after = embed.compute(kernels)

    assert torch.isfinite(kernels.rms_norm(after, torch.ones(after.shape[1]), 1e-5)).all()
