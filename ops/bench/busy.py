"""Who else uses the processors: what the machine did beyond what our own processes did.

Two cores shared with anything else measure nothing. Owns the arithmetic and the limit; the time of
processes we have started counts as ours once they have ended and been waited for.
"""

import os
import time
from dataclasses import dataclass

import psutil

MAX_OTHERS_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Seconds up to now: on the clock, of all processors at work, and of that for us."""

    wall_s: float
    busy_s: float
    ours_s: float


def read_cpu() -> CpuReading:
    """Read the clocks. Stolen time is somebody else's work on processors we take for ours."""
    machine = psutil.cpu_times()
    ours = os.times()
    return CpuReading(
        wall_s=time.perf_counter(),
        busy_s=machine.user
        + machine.nice
        + machine.system
        + machine.irq
        + machine.softirq
        + machine.steal,
        ours_s=ours.user + ours.system + ours.children_user + ours.children_system,
    )


def others_share(before: CpuReading, after: CpuReading, num_processors: int) -> float:
    """Return the part of all processors that others used between two readings."""
    others_s = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    return max(0.0, others_s / ((after.wall_s - before.wall_s) * num_processors))


def watch_others(seconds: float) -> float:
    """Return what others use now, watched for some seconds in which we do nothing."""
    before = read_cpu()
    time.sleep(seconds)
    return others_share(before, read_cpu(), psutil.cpu_count() or 1)
