"""Products with half bytes: compiled kernels mean what the plain ones mean."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.build import compile_variant
from engine.kernels.native import NativeKernels
from engine.kernels.native_library import fitting_variants, library_path, load_library
from engine.kernels.reference import ReferenceKernels
from engine.model.config import Activation, Scheme
from engine.quantised import QuantisedWeight, pack_int4, unpack_int4
from engine.step_buffers import StepSizes

SIZES = StepSizes(num_tokens=32, num_sequences=4, blocks_per_sequence=4)
VARIANTS = {variant.name: variant for variant in fitting_variants() if variant.name != "avx512"}


@pytest.fixture(scope="module", params=VARIANTS)
def native(request):
    variant = VARIANTS[request.param]
    if not library_path(variant).exists():
        compiler = shutil.which("g++") or shutil.which("clang++")
        assert compiler, "the native kernels are tested where there is a compiler"
        compile_variant(compiler, variant)
    library = load_library(variant)
    return lambda dtype: NativeKernels(variant, library, dtype, SIZES, 2)


def a_weight(generator, num_out, num_in, group_size):
    whole = torch.randint(-8, 8, (num_out, num_in), generator=generator).to(torch.int8)
    scales = torch.rand(num_out, -(-num_in // group_size), generator=generator) - 0.3
    return QuantisedWeight(Scheme.INT4, pack_int4(whole), scales, group_size)


def assert_agree(ours, theirs, dtype):
    tolerance = 2e-5 if dtype is torch.float32 else 1.5e-2
    worst = (ours.float() - theirs.float()).abs().max()
    assert worst <= tolerance * theirs.float().abs().max()


@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_what_is_packed_comes_back(num_out, half_in, seed):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-8, 8, (num_out, 2 * half_in), generator=generator).to(torch.int8)

    assert torch.equal(unpack_int4(pack_int4(whole)), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("num_rows", "num_out", "num_in", "group_size"),
    [(1, 40, 64, 32), (7, 100, 72, 32), (13, 33, 200, 128), (32, 64, 128, 16)],
)
def test_products_agree(native, dtype, num_rows, num_out, num_in, group_size):
    generator = torch.Generator().manual_seed(num_rows)
    weight = a_weight(generator, num_out, num_in, group_size)
    bias = torch.linspace(-1, 1, num_out)
    x = torch.full((32, num_in), float("nan"), dtype=dtype)
    x[:num_rows] = torch.randn(num_rows, num_in, generator=generator).to(dtype)
    kernels, plain = native(dtype), ReferenceKernels(dtype, is_packed=False)
    out = kernels.linear(x, kernels.pack_int4(weight, bias, None))

    kernels.run(range(kernels.num_recorded), num_rows, 0, 0)

    expected = plain.linear(x[:num_rows], plain.pack_int4(weight, bias, None))
    assert_agree(out[:num_rows], expected, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_gated_products_agree(native, dtype):
    generator = torch.Generator().manual_seed(0)
    weight = a_weight(generator, 2 * 41, 64, 32)
    x = torch.randn(32, 64, generator=generator).to(dtype)
    kernels, plain = native(dtype), ReferenceKernels(dtype, is_packed=False)
    out = kernels.linear_gated(x, kernels.pack_int4(weight, None, Activation.SILU))

    kernels.run(range(kernels.num_recorded), 32, 0, 0)

    expected = plain.linear_gated(x, plain.pack_int4(weight, None, Activation.SILU))
    assert_agree(out, expected, dtype)
