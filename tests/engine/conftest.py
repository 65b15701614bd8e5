"""What the engine's tests share: running sequences to their end, and small models."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from engine.build import compile_variant
from engine.engine import Engine
from engine.kernels.native_library import fitting_variants
from engine.plan import Completion
from engine.sequence import Sequence
from tests.support.tiny_model import write_tiny_model

RunAll = Callable[[Engine[torch.Tensor], Iterable[Sequence]], dict[str, Completion]]


@pytest.fixture(scope="session", autouse=True)
def two_threads() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """Have the kernels for this machine compiled, as an installation does."""
    fastest = fitting_variants()[0]
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler, "the native kernels are tested where there is a compiler"
    compile_variant(compiler, fastest)


@pytest.fixture
def run_all() -> RunAll:
    """Run sequences together until all have ended; check the blocks at each step and at the end."""

    def run(engine: Engine[torch.Tensor], sequences: Iterable[Sequence]) -> dict[str, Completion]:
        for sequence in sequences:
            engine.add(sequence)
        completions: dict[str, Completion] = {}
        while engine.has_work:
            completions |= {done.sequence_id: done for done in engine.step().finished}
            engine.check_integrity()
        assert engine.capacity().free_blocks == engine.capacity().total_blocks
        return completions

    return run
