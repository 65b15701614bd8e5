"""Thousands of random requests with aborts on a tiny model: memory stays, blocks come back.

python -m ops.bench.soak TASK OUTCOME, with settings `num_requests` and `seed`. Prompts share
beginnings, ranks differ and blocks are scarce, so that requests are cached, preempted and resumed.
"""

import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence
from ops.bench.random_model import TINY, write_random_model
from ops.bench.task import Task, run_task

_NUM_BLOCKS = 64
_MAX_IN_ENGINE = 48
_ABORT_SHARE = 0.2  # some of them come too late
_NUM_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Resident memory, evenly over the run, and what became of the requests."""

    resident_bytes: list[int]
    num_finished: int
    num_aborted: int
    num_preempted: int
    num_blocks_missing: int


def measure(task: Task) -> MemoryTrace:
    """Load a tiny model, then run all requests."""
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Path(folder), TINY)
        config = EngineConfig(num_blocks=_NUM_BLOCKS, max_sequences=16, max_step_tokens=64)
        engine = load_engine(Path(folder), config)
    return _run(engine, int(task.settings["num_requests"]), int(task.settings["seed"]))


def _run(engine: Engine[torch.Tensor], num_requests: int, seed: int) -> MemoryTrace:
    draw = random.Random(seed)  # noqa: S311 no secret
    process = psutil.Process()
    beginnings = [_random_ids(draw, 48) for _ in range(8)]
    resident_bytes: list[int] = []
    num_added = num_finished = num_aborted = num_preempted = 0
    while num_added < num_requests or engine.has_work:
        capacity = engine.capacity()
        if num_added < num_requests and capacity.running + capacity.waiting < _MAX_IN_ENGINE:
            engine.add(_random_sequence(draw, f"{num_added}", beginnings))
            num_added += 1
            if num_added % (num_requests // _NUM_SAMPLES) == 0:
                engine.check_integrity()
                resident_bytes.append(process.memory_info().rss)
            if draw.random() < _ABORT_SHARE:
                num_aborted += engine.abort(f"{num_added - draw.randrange(1, _MAX_IN_ENGINE)}")
            continue
        output = engine.step()
        num_finished += len(output.finished)
        num_preempted += len(output.preempted_ids)
    engine.check_integrity()
    capacity = engine.capacity()
    num_blocks_missing = capacity.total_blocks - capacity.free_blocks
    return MemoryTrace(resident_bytes, num_finished, num_aborted, num_preempted, num_blocks_missing)


def _random_sequence(draw: random.Random, id: str, beginnings: list[list[int]]) -> Sequence:
    shared = draw.choice(beginnings)[: draw.randrange(1, 48)]
    sampling = SamplingParams(
        max_tokens=draw.randrange(1, 64),
        temperature=draw.choice([0.0, 0.0, 0.8]),
        seed=draw.randrange(1 << 31),
        ignore_eos=draw.random() < 0.5,
    )
    prompt_ids = shared + _random_ids(draw, draw.randrange(1, 48))
    return Sequence(id, prompt_ids, sampling, rank=(float(draw.randrange(3)), draw.random()))


def _random_ids(draw: random.Random, num_tokens: int) -> list[int]:
    return [draw.randrange(TINY.vocab_size) for _ in range(num_tokens)]


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
