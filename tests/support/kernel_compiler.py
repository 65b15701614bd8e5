"""Compile the kernels for a GPU on a machine that has none, down to the device's own code.

    env TRITON_CACHE_DIR=FOLDER python -m tests.support.kernel_compiler

A driver of our own stands where the device's would: it names an H200, takes what was compiled and
launches nothing, so results are whatever memory held. Prints as JSON which kernels were compiled
and which cases failed.
"""

import json
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from engine.kernels.triton.kernels import TritonKernels
from ops.bench.kernel_cases import CaseMaker

_H200 = GPUTarget("cuda", 90, 32)
_SHARED_BYTES = 227 << 10  # a block's
_MAX_THREADS = 1024


class NoDevice:
    """What Triton asks a driver for, of a device that is not there."""

    def __init__(self) -> None:
        self.compiled: set[str] = set()
        self.utils = self
        self.launcher_cls = NoLaunch

    def get_current_target(self) -> GPUTarget:
        return _H200

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002 there is one
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:  # noqa: ARG002 there is one
        return {"max_shared_mem": _SHARED_BYTES}

    def load_binary(self, name: str, code: bytes, *where: int) -> tuple[int, int, int, int, int]:  # noqa: ARG002 nowhere
        """Take a compiled kernel; return handles of it, its registers, spills and threads."""
        assert code
        self.compiled.add(name)
        return 1, 1, 0, 0, _MAX_THREADS


class NoLaunch:
    """A launcher that launches nothing."""

    def __init__(self, source: Any, metadata: Any) -> None:
        """Take what Triton gives a launcher, of types it keeps to itself."""

    def __call__(self, *arguments: Any) -> None:
        """Do nothing."""


def main() -> None:
    """Compile what all cases need."""
    device = NoDevice()
    driver.set_active(device)
    failed = {}
    dtype = torch.bfloat16
    for case in CaseMaker(dtype, torch.device("cpu"), seed=0).cases():
        try:
            case.compute(TritonKernels(dtype))
        except Exception as error:  # noqa: BLE001 told below, with all others
            failed[case.name] = f"{type(error).__name__}: {error}"
    print(json.dumps({"compiled": sorted(device.compiled), "failed": failed}))  # noqa: T201


if __name__ == "__main__":
    main()
