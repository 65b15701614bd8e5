"""Many random requests through one engine, with aborts: nothing may leak, nothing may grow.

A short run is part of the tests; a long one by hand:

    python -m tests.support.long_run --requests 20000
"""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence
from tests.support.tiny_model import write_tiny_model


@dataclass(frozen=True, slots=True)
class LongRun:
    """How many requests ended how, and memory after the first quarter and at the end."""

    num_completed: int
    num_aborted: int
    num_preempted: int
    early_memory_bytes: int
    final_memory_bytes: int


def run_many(folder: Path, num_requests: int, seed: int = 0) -> LongRun:
    """Keep a small engine crowded with random requests; check its blocks all along."""
    config = EngineConfig(num_blocks=40, max_sequences=8, max_step_tokens=48)
    engine = load_engine(folder, config)
    choices = random.Random(seed)
    live: list[str] = []
    num_added = num_completed = num_aborted = num_preempted = early_memory_bytes = 0
    while num_added < num_requests or engine.has_work:
        while num_added < num_requests and len(live) < 16:
            sequence = _a_sequence(str(num_added), choices)
            engine.add(sequence)
            live.append(sequence.id)
            num_added += 1
        output = engine.step()
        num_preempted += len(output.preempted_ids)
        for completion in output.finished:
            live.remove(completion.sequence_id)
            num_completed += 1
        if live and choices.random() < 0.1:
            num_aborted += engine.abort(live.pop(choices.randrange(len(live))))
        engine.check_integrity()
        if early_memory_bytes == 0 and num_added > num_requests // 4:
            early_memory_bytes = psutil.Process().memory_info().rss
    _check_empty(engine)
    final_memory_bytes = psutil.Process().memory_info().rss
    return LongRun(
        num_completed, num_aborted, num_preempted, early_memory_bytes, final_memory_bytes
    )


def _a_sequence(name: str, choices: random.Random) -> Sequence:
    shared = [7] * choices.choice([0, 0, 20, 40])
    own = [choices.randrange(250) for _ in range(choices.randint(1, 60))]
    sampling = SamplingParams(
        max_tokens=choices.randint(1, 40), temperature=choices.choice([0.0, 1.0]), seed=1
    )
    rank = (float(choices.randrange(3)), choices.random())
    return Sequence(name, shared + own, sampling, rank)


def _check_empty(engine: Engine[torch.Tensor]) -> None:
    engine.check_integrity()
    capacity = engine.capacity()
    assert capacity.free_blocks == capacity.total_blocks, "a block has leaked"
    assert capacity.running == capacity.waiting == 0, "a sequence was left behind"


@click.command()
@click.option("--requests", "num_requests", default=20_000, show_default=True)
def main(num_requests: int) -> None:
    """Run many random requests and tell what came of them."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_many(write_tiny_model(Path(folder) / "model"), num_requests)
    click.echo(str(run))
    grown = run.final_memory_bytes - run.early_memory_bytes
    click.echo(f"memory grew by {grown / 2**20:.1f} MiB over the last three quarters")


if __name__ == "__main__":
    main()
