"""An embedding that is also the head is held once, where its packed rows can be looked up."""

from dataclasses import replace

import pytest
import torch

from engine.config import ComputeType, EngineConfig, KernelChoice
from engine.kernels.choice import choose_kernels
from engine.kernels.interface import Kernels
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton.kernels import TritonKernels
from engine.loading import load_engine
from engine.model.build import Placement, load_decoder_weights
from engine.model.families import read_model_config
from engine.step_buffers import StepSizes
from tests.support.family_models import write_family_model

CPU = torch.device("cpu")
SIZES = StepSizes(num_tokens=16, num_sequences=4, blocks_per_sequence=4)
VOCABULARY, WIDTH = 258, 64

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def compiled(dtype) -> Kernels:
    return choose_kernels(EngineConfig(kernels=KernelChoice.NATIVE), dtype, CPU, SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_family_model(tmp_path_factory.mktemp("tied") / "model", "qwen2")


@pytest.mark.parametrize(
    "kernels_of",
    [
        compiled,
        TritonKernels,
        lambda dtype: ReferenceKernels(dtype, is_packed=False),
    ],
    ids=["compiled", "triton", "plain"],
)
def test_the_head_is_the_embedding_where_it_can_be(folder, kernels_of):
    placement = Placement(torch.float32, CPU, max_context=64)

    weights = load_decoder_weights(
        folder, read_model_config(folder), kernels_of(torch.float32), placement
    )

    assert weights.head is weights.embedding


def test_the_plan_counts_a_shared_embedding_once(folder):
    config = EngineConfig(dtype=ComputeType.FLOAT32, num_blocks=8)

    shared, copied = (
        load_engine(folder, replace(config, kernels=kernels)).facts.memory
        for kernels in (KernelChoice.NATIVE, KernelChoice.REFERENCE)
    )

    assert shared is not None
    assert copied is not None
    assert copied.weights_bytes - shared.weights_bytes == 4 * VOCABULARY * WIDTH
    file_bytes = (folder / "model.safetensors").stat().st_size
    assert 0.97 * file_bytes < shared.weights_bytes < file_bytes  # the file has a header too
