"""How long realtime jobs wait beside saturating bulk work, and without it, in one run.

`python -m ops.load.realtime_wait [--model FOLDER]`. A real engine worker on a real store; phases
without bulk and with four times more of it than there are slots take turns, so that what else the
machine does hits both. Realtime jobs come as Poisson arrivals. Waited is from arrival until a job
joins a step, and until its first token; both should be no longer beside bulk than without, but for
one step and the coalescing wait. How long one step takes, each realtime job tells by its second and
last token.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import quantiles

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
_WORDS = ("paper", "mill", "water", "wheel", "pulp", "sheet", "press", "ink")
_SEED = 7


@dataclass(frozen=True, slots=True)
class Waited:
    """Milliseconds of one realtime job: until it joined a step, until its first token; and how
    long the step after that took.
    """

    joined_ms: float
    first_token_ms: float
    step_ms: float


@click.command()
@click.option("--model", default=DEFAULT_FOLDER, type=click.Path(path_type=Path))
@click.option("--jobs", "num_jobs", default=800, show_default=True, help="Realtime jobs in all.")
@click.option("--rate", default=4.0, show_default=True, help="Realtime jobs a second.")
@click.option("--rounds", default=4, show_default=True, help="Phases of each kind.")
@click.option(
    "--bulk-words", default=10, show_default=True, help="Length of the prompts of bulk jobs."
)
def main(model: Path, num_jobs: int, rate: float, rounds: int, bulk_words: int) -> None:
    """Measure, and print the table."""
    alone: list[Waited] = []
    beside_bulk: list[Waited] = []
    with server() as url, connect(url) as client, _worker(url, model):
        bench = _Bench(JobQueue(client), load_manifest(model).name, rate, bulk_words)
        bench.phase(8, bulk=False)  # the first jobs pay for what is made lazily
        for _ in range(rounds):
            per_phase = num_jobs // (2 * rounds)
            alone += bench.phase(per_phase, bulk=False)
            beside_bulk += bench.phase(per_phase, bulk=True)
    click.echo(report(alone, beside_bulk))


def report(alone: Sequence[Waited], beside_bulk: Sequence[Waited]) -> str:
    """Write the percentiles as a table, and what they should keep to."""
    step_ms = quantiles([waited.step_ms for waited in beside_bulk], n=100)
    rows = [
        "| wait | jobs | p50, ms | p95 | p99 | p99 should stay below |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, of in (
        ("until it joins a step", attrgetter("joined_ms")),
        ("for the first token", attrgetter("first_token_ms")),
    ):
        base, beside = (quantiles(map(of, jobs), n=100) for jobs in (alone, beside_bulk))
        bound_ms = base[98] + step_ms[98] + COALESCE_MS
        rows += [
            f"| {name}, without bulk | {len(alone)} | {_shown(base)} | |",
            f"| {name}, beside bulk | {len(beside_bulk)} | {_shown(beside)} | {bound_ms:.1f} |",
        ]
    rows.append(
        f"\nA step beside bulk takes {step_ms[49]:.1f} ms, at the 99th percentile"
        f" {step_ms[98]:.1f}; that and {COALESCE_MS:g} ms of coalescing may come on top."
    )
    return "\n".join(rows)


def _shown(cuts: Sequence[float]) -> str:
    return f"{cuts[49]:.1f} | {cuts[94]:.1f} | {cuts[98]:.1f}"


class _Bench:
    """Submits and reads jobs of one model."""

    def __init__(self, jobs: JobQueue, model: str, rate: float, bulk_words: int) -> None:
        self._jobs = jobs
        self._model = model
        self._queue = generate_queue(model)
        self._chance = random.Random(_SEED)  # noqa: S311  no secret
        self._rate = rate
        self._bulk_words = bulk_words

    def phase(self, count: int, *, bulk: bool) -> list[Waited]:
        """Submit realtime jobs; return how long each waited."""
        backlog: list[str] = []
        urgent = []
        for _ in range(count):
            if bulk:
                backlog += self._top_up()
            time.sleep(self._chance.expovariate(self._rate))
            urgent.append(self._submit(Priority.REALTIME, _URGENT_TOKENS, num_words=1))
        waits = [_waited(self._read(job_id)) for job_id in urgent]
        for job_id in backlog:
            self._jobs.cancel(job_id, DEFAULT_TENANT)
            self._read(job_id)
        return waits

    def _top_up(self) -> list[str]:
        """Return once every slot is taken and more bulk waits than there are slots."""
        made: list[str] = []
        while True:
            depth = self._jobs.depth(self._queue)
            missing = _BACKLOG - depth.ready[Priority.BULK]
            made += [
                self._submit(
                    Priority.BULK, self._chance.randint(*_BULK_TOKENS), num_words=self._bulk_words
                )
                for _ in range(missing)
            ]
            if missing <= 0 and depth.leased >= SLOTS:
                return made
            time.sleep(0.005)

    def _submit(self, priority: Priority, max_tokens: int, *, num_words: int) -> str:
        words = self._chance.choices(_WORDS, k=num_words)
        request = GenerateRequest(
            self._model, max_tokens, prompt=" ".join([new_id(""), *words]), ignore_eos=True
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


def _waited(record: JobRecord) -> Waited:
    assert record.started_s is not None, "it completed"
    claimed_ms = (record.started_s - record.arrival_s) * 1000
    joined_ms = claimed_ms + record.stages["tokenise_ms"] + record.stages["admit_ms"]
    first_token_ms = joined_ms + record.stages["prefill_ms"]
    return Waited(joined_ms, first_token_ms, record.stages["decode_ms"])


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
