"""What a step costs against batch size, context length and waiting requests.

python -m ops.bench.step_costs TASK OUTCOME, with the setting `dtype`. One thing grows at a time, so
that something quadratic is seen: the growth between neighbours is an exponent.
"""

import sys
import time
from dataclasses import dataclass, replace
from statistics import median

import torch

from engine.engine import Engine
from ops.bench.ours import as_sequence, load
from ops.bench.task import Task, TokenRequest, run_task

MAX_BATCH = 64
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXT_LENGTHS = (128, 256, 512, 1024, 2048)
_WAITING = (0, 100, 1_000, 10_000)
_TYPICAL_CONTEXT = 160
_BATCH_OF_CONTEXTS = 8
_NUM_STEPS = 16
_MAX_TOKENS = 128  # more than any sequence makes until all others have begun


@dataclass(frozen=True, slots=True)
class Cost:
    """The median seconds of a decode step, and of adding one request, where `size` is this."""

    size: int
    step_s: float
    add_s: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Costs by what grows."""

    by_batch: list[Cost]
    by_context: list[Cost]
    by_waiting: list[Cost]


def measure(task: Task) -> StepCosts:
    """Measure each size on an engine that is empty before and after."""
    engine = load(replace(task, in_flight=MAX_BATCH))
    _cost(engine, _Load(1, 1, _TYPICAL_CONTEXT))  # the first steps are slower than all others
    return StepCosts(
        [_cost(engine, _Load(size, size, _TYPICAL_CONTEXT)) for size in _BATCH_SIZES],
        [_cost(engine, _Load(size, _BATCH_OF_CONTEXTS, size)) for size in _CONTEXT_LENGTHS],
        [_cost(engine, _Load(size, MAX_BATCH, _TYPICAL_CONTEXT, size)) for size in _WAITING],
    )


@dataclass(frozen=True, slots=True)
class _Load:
    """What the engine is filled with. Others wait only where the batch is as large as can be."""

    size: int
    batch: int
    context: int
    num_waiting: int = 0


def _cost(engine: Engine[torch.Tensor], load: _Load) -> Cost:
    """Fill the engine, time decode steps and empty it again."""
    running = [f"running-{index}" for index in range(load.batch)]
    for id in running:
        engine.add(as_sequence(TokenRequest(id, [1] * load.context, _MAX_TOKENS)))
    while engine.step().num_decode_tokens < load.batch:
        pass
    waiting = [f"waiting-{index}" for index in range(load.num_waiting)]
    started = time.perf_counter()
    for id in waiting:
        engine.add(as_sequence(TokenRequest(id, [1] * load.context, _MAX_TOKENS)))
    add_s = (time.perf_counter() - started) / max(1, load.num_waiting)
    step_s = median(engine.step().duration_s for _ in range(_NUM_STEPS))
    for id in (*running, *waiting):
        engine.abort(id)
    return Cost(load.size, step_s, add_s)


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
