"""Which kernels an engine runs on.

Owns the choice by device and setting. Triton is imported only where its kernels are wanted: torch's
CPU build does not bring it.
"""

from importlib.util import find_spec
from pathlib import Path
from shutil import which
from sysconfig import get_path
from typing import TYPE_CHECKING

import torch

from engine.config import EngineConfig, KernelChoice
from engine.errors import KernelsMissingError
from engine.kernels.native import NativeKernels
from engine.kernels.native_library import find_library
from engine.kernels.reference import ReferenceKernels, can_pack
from engine.step_buffers import StepSizes

if TYPE_CHECKING:
    from engine.kernels.triton.kernels import TritonKernels


def choose_kernels(
    config: EngineConfig, dtype: torch.dtype, device: torch.device, sizes: StepSizes
) -> "NativeKernels | ReferenceKernels | TritonKernels":
    """Take the device's own kernels where there are some, unless others are asked for.

    Raise KernelsMissingError where those that are asked for can't run.
    """
    choice = config.kernels
    if choice is KernelChoice.AUTO:
        choice = KernelChoice.TRITON if device.type == "cuda" else KernelChoice.NATIVE
    kernels: NativeKernels | TritonKernels | None = None
    if choice is KernelChoice.TRITON:
        kernels = _triton(dtype, device)
    elif choice is KernelChoice.NATIVE:
        kernels = _native(dtype, device, sizes)
    if kernels is None and config.kernels is choice is not KernelChoice.REFERENCE:
        raise KernelsMissingError(choice, device.type)
    return kernels or ReferenceKernels(dtype, is_packed=can_pack(device))


def _native(dtype: torch.dtype, device: torch.device, sizes: StepSizes) -> NativeKernels | None:
    found = find_library() if device.type == "cpu" else None
    return None if found is None else NativeKernels(*found, dtype, sizes, torch.get_num_threads())


def _triton(dtype: torch.dtype, device: torch.device) -> "TritonKernels | None":
    """Return kernels for a GPU; on a CPU only where they are interpreted, as in tests."""
    if find_spec("triton") is None:
        return None
    from engine.kernels.triton.kernels import TritonKernels
    from engine.kernels.triton.tiles import is_interpreted

    can_run = is_interpreted() or (device.type == "cuda" and _has_compiler())
    return TritonKernels(dtype) if can_run else None


def _has_compiler() -> bool:
    """Tell whether there is what Triton compiles its launchers with: a C compiler, and headers."""
    headers = Path(get_path("include"), "Python.h")
    return headers.exists() and any(map(which, ("gcc", "clang")))
