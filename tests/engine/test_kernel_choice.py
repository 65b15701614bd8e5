import pytest
import torch

from engine.config import EngineConfig, KernelChoice
from engine.errors import KernelsMissingError
from engine.kernels.choice import choose_kernels
from engine.step_buffers import StepSizes

SIZES = StepSizes(num_tokens=8, num_sequences=2, blocks_per_sequence=2)

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def kernels_on(device, choice=KernelChoice.AUTO):
    config = EngineConfig(device=device, kernels=choice)
    return choose_kernels(config, torch.float32, torch.device(device), SIZES)


@pytest.mark.parametrize(
    ("device", "choice", "name"),
    [
        ("cpu", KernelChoice.AUTO, "native"),
        ("cuda", KernelChoice.AUTO, "triton"),
        ("cpu", KernelChoice.TRITON, "triton, interpreted"),
        ("cpu", KernelChoice.REFERENCE, "reference"),
        ("cuda", KernelChoice.REFERENCE, "reference"),
    ],
)
def test_a_device_has_kernels_of_its_own_unless_others_are_asked_for(device, choice, name):
    assert kernels_on(device, choice).name.startswith(name)


def test_kernels_for_another_device_are_refused_by_name():
    with pytest.raises(KernelsMissingError, match="no native kernels for this cuda"):
        kernels_on("cuda", KernelChoice.NATIVE)


def test_without_a_compiler_a_gpu_gets_the_plain_kernels(monkeypatch):
    monkeypatch.setattr("engine.kernels.triton.tiles.is_interpreted", lambda: False)
    monkeypatch.setenv("PATH", "")

    assert kernels_on("cuda").name == "reference"
    with pytest.raises(KernelsMissingError, match="C compiler"):
        kernels_on("cuda", KernelChoice.TRITON)
