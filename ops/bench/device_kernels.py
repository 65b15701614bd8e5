"""Triton's kernels against the plain ones on a device, for every operation and type.

python -m ops.bench.device_kernels TASK OUTCOME, with the setting `device`. On a CPU the kernels run
in Triton's interpreter, if TRITON_INTERPRET=1 says so, and not in bfloat16: it multiplies the bits
of such numbers.
"""

import sys
import time

import torch

from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton.kernels import TritonKernels
from ops.bench.device_section import Section
from ops.bench.kernel_cases import CaseMaker, KernelCase
from ops.bench.task import Task, run_task

# Each seed has shapes of its own, and every shape is compiled: about a second each.
_SEEDS = {torch.bfloat16: (0, 1), torch.float16: (0,), torch.float32: (0,)}
_MOST_SECONDS = 200
_ON_A_CPU = (torch.float32, torch.float16)


def measure(task: Task) -> Section:
    """Compare all cases; the errors are over the largest value of each result."""
    device = torch.device(task.settings["device"])
    rows: list[list[str]] = []
    failures: list[str] = []
    numbers: dict[str, float | None] = {}
    started = time.monotonic()
    for dtype, seeds in _SEEDS.items():
        if device.type == "cpu" and dtype not in _ON_A_CPU:
            continue
        for seed in seeds:
            for case in CaseMaker(dtype, device, seed).cases():
                name = f"{case.name}, {str(dtype).removeprefix('torch.')}, seed {seed}"
                if time.monotonic() - started > _MOST_SECONDS:
                    failures.append(f"{name}: not compared, there was no more time")
                    continue
                error = _error(case, dtype, name, failures)
                numbers[name] = error
                if error is not None:
                    rows.append([name, f"{error:.1e}", f"{case.tolerance:.0e}"])
    return Section("Kernels", ["case", "error", "allowed"], rows, dict(numbers), failures)


def _error(case: KernelCase, dtype: torch.dtype, name: str, failures: list[str]) -> float | None:
    """Return a case's error, if it can be computed; note what is wrong with it."""
    try:
        error = case.error(TritonKernels(dtype), ReferenceKernels(dtype, is_packed=False))
    except Exception as problem:  # noqa: BLE001 a kernel that does not compile must not hide others
        failures.append(f"{name}: {type(problem).__name__}: {str(problem)[-600:]}")
        return None
    if error > case.tolerance:
        failures.append(f"{name}: off by {error:.1e}, allowed is {case.tolerance:.0e}")
    return error


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
