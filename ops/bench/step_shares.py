"""Where a step's time goes: linear layers, attention, small kernels, head and sampling, Python.

python -m ops.bench.step_shares TASK OUTCOME. The compiled kernels keep clocks of their own; what
they do not claim of the whole is Python and scheduling, the bench's client included. Plain PyTorch
kernels keep none, so there is nothing to tell about them.
"""

import sys
import time
from dataclasses import dataclass

from engine.plan import StepSeconds
from ops.bench.closed_loop import run_closed_loop
from ops.bench.ours import OurEngine, load
from ops.bench.task import Task, run_task


@dataclass(frozen=True, slots=True)
class StepShares:
    """Parts of the whole time of a run, by name; they sum to 1."""

    kernels: str
    shares: dict[str, float]


def measure(task: Task) -> StepShares:
    """Run the task and split its time."""
    engine = load(task)
    seconds = engine.facts.step_seconds
    if seconds is None:
        return StepShares(engine.facts.kernels, {})
    before, started = seconds(), time.perf_counter()
    run_closed_loop(OurEngine(engine), task)
    return StepShares(engine.facts.kernels, split(before, seconds(), time.perf_counter() - started))


def split(before: StepSeconds, after: StepSeconds, whole_s: float) -> dict[str, float]:
    """Return each part's share of the whole between two readings."""
    shares = {
        "linears": (after.linears - before.linears) / whole_s,
        "attention": (after.attention - before.attention) / whole_s,
        "small kernels": (after.rows - before.rows) / whole_s,
        "head and sampling": (after.head - before.head) / whole_s,
    }
    return shares | {"Python and scheduling": 1.0 - sum(shares.values())}


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
