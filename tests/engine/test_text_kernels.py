"""Whole texts are computed as serving computes them, and gradients come through."""

from dataclasses import replace

import pytest
import torch

from engine.calibration import batch_of
from engine.kernels.reference import ReferenceKernels
from engine.kv_cache import CacheFormat, KvCache
from engine.model.build import Placement, load_decoder_weights
from engine.model.decoder import Decoder
from engine.model.families import read_model_config
from engine.rounding import round_int8
from engine.text_kernels import TextKernels
from tests.support.family_models import write_family_model

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TEXTS = [list(range(30)), list(range(40, 88)), list(range(200, 221))]


def foretold(folder, kernels, dtype):
    """Return the log probabilities at each token, from a cache as in serving."""
    batch = batch_of(TEXTS)
    batch = replace(batch, sampled_rows=torch.arange(len(batch.token_ids)))
    config = read_model_config(folder)
    weights = load_decoder_weights(folder, config, kernels, Placement(dtype, CPU, 64))
    cache = KvCache(config, len(batch.block_ids), CacheFormat(16, dtype), CPU)
    decoder = Decoder(weights, kernels, cache)
    return decoder.scores(decoder.forward(batch)).log_softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", ["llama-llama3", "gemma2", "olmo2"])
def test_whole_texts_give_what_serving_gives(family, dtype, tmp_path):
    folder = write_family_model(tmp_path / "model", family)

    ours = foretold(folder, TextKernels(dtype), dtype)

    theirs = foretold(folder, ReferenceKernels(dtype, is_packed=False), dtype)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_products_of_bytes_are_those_that_serve(dtype):
    generator = torch.Generator().manual_seed(0)
    weight = round_int8(torch.randn(40, 64, generator=generator))
    x = torch.randn(9, 64, generator=generator).to(dtype)
    bias = torch.linspace(-1, 1, 40)
    ours, serving = TextKernels(dtype), ReferenceKernels(dtype, is_packed=False)
    packed = serving.pack_int8(weight.values, weight.scales[:, 0], bias, None)

    product = ours.linear(x, packed)

    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(product, serving.linear(x, packed), rtol=tolerance, atol=tolerance)


def test_gradients_pass_rounding_to_bytes_as_if_it_were_not_there():
    generator = torch.Generator().manual_seed(0)
    weight = round_int8(torch.randn(40, 64, generator=generator))
    x = torch.randn(9, 64, generator=generator, requires_grad=True)
    kernels = TextKernels(torch.float32)
    packed = kernels.pack_int8(weight.values, weight.scales[:, 0], None, None)

    kernels.linear(x, packed).sum().backward()

    torch.testing.assert_close(x.grad, weight.dequantise().sum(0).expand(9, -1))
