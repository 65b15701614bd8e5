"""What machine, and how fast its memory and matrix products are: the ceilings of what comes after.

python -m ops.bench.device_environment TASK OUTCOME, with the setting `device`.
"""

import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import torch

from ops.bench.device_section import Section
from ops.bench.task import Task, run_task

_PACKAGES = ("torch", "triton", "transformers", "numpy", "safetensors")
_NUM_TIMINGS = 10


def measure(task: Task) -> Section:
    """Name the versions and the device, and time a copy and a product."""
    device = torch.device(task.settings["device"])
    is_gpu = device.type == "cuda"
    copied_bytes, side = (2 << 30, 8192) if is_gpu else (16 << 20, 512)
    source = torch.zeros(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a = torch.randn(side, side, device=device).bfloat16()
    numbers = {
        # A copy reads and writes.
        "bytes_per_s": 2 * copied_bytes / seconds_of(lambda: target.copy_(source), device),
        "flop_per_s": 2 * side**3 / seconds_of(lambda: a @ a, device),
    }
    rows = [
        ["Python", platform.python_version()],
        *([name, _version(name)] for name in _PACKAGES),
        *(_describe_gpu() if is_gpu else [["device", platform.processor() or "CPU"]]),
        ["memory, copied", f"{numbers['bytes_per_s'] / 1e12:.3f} TB/s"],
        ["bf16 product", f"{numbers['flop_per_s'] / 1e12:.2f} TFLOP/s"],
    ]
    return Section("Environment", ["what", ""], rows, numbers)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of some work on a device, once warm."""
    timings = []
    for _ in range(2 + _NUM_TIMINGS):
        wait_for(device)
        started = time.perf_counter()
        work()
        wait_for(device)
        timings.append(time.perf_counter() - started)
    return median(timings[2:])


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all it was asked to; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _describe_gpu() -> list[list[str]]:
    properties = torch.cuda.get_device_properties(0)
    return [
        ["device", properties.name],
        ["compute capability", f"{properties.major}.{properties.minor}"],
        ["multiprocessors", str(properties.multi_processor_count)],
        ["device memory", f"{properties.total_memory / 2**30:.1f} GiB"],
        ["CUDA of torch", str(torch.version.cuda)],
    ]


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
