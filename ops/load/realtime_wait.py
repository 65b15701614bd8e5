"""How long realtime jobs wait beside saturating bulk work, and without it, in one run.

`python -m ops.load.realtime_wait [--model FOLDER]`. A real engine worker on a real store; phases
without bulk and with four times more of it than there are slots take turns, so that what else the
machine does hits both. Realtime jobs come as Poisson arrivals. Waited is from arrival to the first
token; it should be no more beside bulk than without, but for one step and the coalescing wait.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, quantiles

import click

from engine.registry import load_manifest
from ops.bench.queue_speed import server
from ops.demo_model import DEFAULT_FOLDER
from queueing.job import DEFAULT_TENANT, Job, JobRecord, Priority, generate_queue, new_id
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.wire import GenerateRequest, encode_request

SLOTS = 32
COALESCE_MS = 10.0
_BACKLOG = 4 * SLOTS
_URGENT_TOKENS = 2
_BULK_TOKENS = (100, 300)  # of different lengths, or all slots would end at the same step
_SEED = 7
_STAGES = ("tokenise", "admit", "prefill")


@dataclass(slots=True)
class Observed:
    """Milliseconds: waits for the first token by phase, and the length of a step beside bulk."""

    alone_ms: list[float] = field(default_factory=list)
    beside_bulk_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)


@click.command()
@click.option("--model", default=DEFAULT_FOLDER, type=click.Path(path_type=Path))
@click.option("--jobs", "num_jobs", default=400, show_default=True, help="Realtime jobs in all.")
@click.option("--rate", default=4.0, show_default=True, help="Realtime jobs a second.")
@click.option("--rounds", default=4, show_default=True, help="Phases of each kind.")
def main(model: Path, num_jobs: int, rate: float, rounds: int) -> None:
    """Measure, and print the table."""
    observed = Observed()
    with server() as url, connect(url) as client, _worker(url, model):
        bench = _Bench(JobQueue(client), load_manifest(model).name, rate)
        bench.phase(8, bulk=False)  # the first jobs pay for what is made lazily
        for _ in range(rounds):
            per_phase = num_jobs // (2 * rounds)
            observed.alone_ms += bench.phase(per_phase, bulk=False)
            observed.beside_bulk_ms += bench.phase(per_phase, bulk=True)
        observed.step_ms = bench.step_ms
    click.echo(report(observed))


def report(observed: Observed) -> str:
    """Write the percentiles as a table, and what they should keep to."""
    rows = [
        "| wait for the first token | jobs | p50, ms | p95 | p99 |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, waits_ms in (
        ("without bulk", observed.alone_ms),
        ("beside bulk", observed.beside_bulk_ms),
    ):
        cuts = quantiles(waits_ms, n=100)
        rows.append(
            f"| {name} | {len(waits_ms)} | {cuts[49]:.1f} | {cuts[94]:.1f} | {cuts[98]:.1f} |"
        )
    alone_ms = quantiles(observed.alone_ms, n=100)[98]
    step_ms = quantiles(observed.step_ms, n=100)[98]
    rows.append(
        f"\nA step beside bulk takes {fmean(observed.step_ms):.1f} ms, at the 99th percentile"
        f" {step_ms:.1f}; with that and {COALESCE_MS:g} ms of coalescing the p99 beside bulk should"
        f" stay below {alone_ms + step_ms + COALESCE_MS:.1f} ms."
    )
    return "\n".join(rows)


class _Bench:
    """Submits and reads jobs of one model."""

    def __init__(self, jobs: JobQueue, model: str, rate: float) -> None:
        self._jobs = jobs
        self._model = model
        self._queue = generate_queue(model)
        self._chance = random.Random(_SEED)  # noqa: S311  no secret
        self._rate = rate
        self.step_ms: list[float] = []

    def phase(self, count: int, *, bulk: bool) -> list[float]:
        """Submit realtime jobs; return how long each waited."""
        backlog: list[str] = []
        urgent = []
        for _ in range(count):
            if bulk:
                backlog += self._top_up()
            time.sleep(self._chance.expovariate(self._rate))
            urgent.append(self._submit(Priority.REALTIME, _URGENT_TOKENS))
        waits = [_wait_ms(self._read(job_id)) for job_id in urgent]
        for job_id in backlog:
            self._jobs.cancel(job_id, DEFAULT_TENANT)
            self._note_steps(self._read(job_id))
        return waits

    def _top_up(self) -> list[str]:
        """Return once every slot is taken and more bulk waits than there are slots."""
        made: list[str] = []
        while True:
            depth = self._jobs.depth(self._queue)
            missing = _BACKLOG - depth.ready[Priority.BULK]
            made += [
                self._submit(Priority.BULK, self._chance.randint(*_BULK_TOKENS))
                for _ in range(missing)
            ]
            if missing <= 0 and depth.leased >= SLOTS:
                return made
            time.sleep(0.005)

    def _submit(self, priority: Priority, max_tokens: int) -> str:
        request = GenerateRequest(
            self._model, max_tokens, prompt=f"{priority} {new_id('')}", ignore_eos=True
        )
        job = Job(new_id("job_"), self._queue, encode_request(request), priority=priority)
        self._jobs.enqueue(job)
        return job.id

    def _read(self, job_id: str) -> JobRecord:
        """Return a job once it has ended."""
        while True:
            record = self._jobs.get(job_id, DEFAULT_TENANT)
            assert record is not None, "it was enqueued"
            if record.state.is_terminal:
                return record
            time.sleep(0.01)

    def _note_steps(self, record: JobRecord) -> None:
        if record.result is not None and record.result.usage.completion_tokens > 1:
            num_steps = record.result.usage.completion_tokens - 1
            self.step_ms.append(record.stages["decode_ms"] / num_steps)


def _wait_ms(record: JobRecord) -> float:
    assert record.started_s is not None, "it completed"
    claimed_ms = (record.started_s - record.arrival_s) * 1000
    return claimed_ms + sum(record.stages[f"{stage}_ms"] for stage in _STAGES)


@contextmanager
def _worker(url: str, model: Path) -> Iterator[None]:
    """Run one engine worker with one thread."""
    environment = {
        **os.environ,  # noqa: TID251  the worker is a child of this process
        "PROMPTMILL_REDIS_URL": url,
        "PROMPTMILL_SLOTS": str(SLOTS),
        "PROMPTMILL_COALESCE_MS": str(COALESCE_MS),
        "PROMPTMILL_ENGINE_THREADS": "1",
        "PROMPTMILL_LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "ops.cli", "worker", "engine", "--model", str(model)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
