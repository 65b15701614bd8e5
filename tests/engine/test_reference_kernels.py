import pytest
import torch

from engine.kernels.reference import ReferenceKernels, can_pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("num_rows", [1, 7, 64])
def test_onednns_packed_product_is_torchs_own(dtype, num_rows):
    assert can_pack(torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 96, generator=generator).to(dtype)
    weight = torch.randn(80, 96, generator=generator).to(dtype)
    bias = torch.randn(80, generator=generator)
    packed, plain = (ReferenceKernels(dtype, is_packed=is_packed) for is_packed in (True, False))

    ours = packed.linear(x, packed.pack(weight, bias, None))

    theirs = plain.linear(x, plain.pack(weight, bias, None))
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * 10)
