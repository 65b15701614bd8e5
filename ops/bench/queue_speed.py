"""How fast the queue itself is, beside the queues a user would pick instead and beside Redis alone.

`python -m ops.bench.queue_speed [COUNT]`. Every system gets an empty server of its own, with an
append-only file as in service, the same jobs of 400 characters, one worker process, and the machine
to itself; the work is nothing. Rivals run in an environment under .cache/bench, made on first use.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from ops.bench.noop_worker import MODEL
from ops.bench.venvs import Environment, ensure_environment
from ops.stack import embedded_server, free_port
from queueing.job import Job, generate_queue, new_id
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from queueing.wire import GenerateRequest, encode_request
from workers.celery_config import make_celery

RIVALS = Environment(
    "queues", ("celery[redis]==5.7.0", "rq==3.0.0", "dramatiq[redis]==2.2.1", "huey==3.5.4")
)
NAMES = ("celery-solo", "celery-threads", "rq", "dramatiq", "huey")
PAYLOAD = "x" * 400
_SLOTS = 64
_BATCH = 256
_QUEUE = generate_queue(MODEL)


@dataclass(frozen=True, slots=True)
class Row:
    """One system's rates, in jobs a second; None where it does not apply."""

    name: str
    submit: float | None
    end_to_end: float | None


def main() -> None:
    """Measure all and print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    rows = [
        ours("promptmill, one call a job", count, batch=1),
        ours(f"promptmill, {_BATCH} jobs a call", count, batch=_BATCH),
        ours_without_events("promptmill, without Celery's events", count),
        *(rival(name, count) for name in NAMES),
        *redis_alone(),
    ]
    sys.stdout.write("| system | submit, jobs/s | end to end, jobs/s |\n| --- | ---: | ---: |\n")
    for row in rows:
        sys.stdout.write(f"| {row.name} | {_rate(row.submit)} | {_rate(row.end_to_end)} |\n")


def ours(name: str, count: int, *, batch: int) -> Row:
    """Measure our queue with our transport and pool, under real Celery."""
    with server() as url, connect(url) as client:
        queue = JobQueue(client, QueueLimits(max_queued_jobs=2 * count))
        begun = time.monotonic()
        submit(queue, count, batch)
        submit_s = time.monotonic() - begun
        with noop_worker(url):
            return Row(name, count / submit_s, _rate_of_ends(queue, count))


def ours_without_events(name: str, count: int) -> Row:
    """Measure the same with Celery's events turned off, by Celery's own remote control."""
    with server() as url, connect(url) as client, noop_worker(url):
        queue = JobQueue(client, QueueLimits(max_queued_jobs=2 * count))
        control = make_celery("bench", url).control
        while not control.disable_events(reply=True, timeout=1):
            time.sleep(0.1)
        submit(queue, count, _BATCH)
        return Row(name, None, _rate_of_ends(queue, count))


def submit(queue: JobQueue, count: int, batch: int) -> None:
    """Enqueue jobs of 400 characters."""
    request = encode_request(GenerateRequest(MODEL, 1, prompt=PAYLOAD))
    jobs = [Job(new_id("job_"), _QUEUE, request) for _ in range(count)]
    for first in range(0, count, batch):
        if batch == 1:
            queue.enqueue(jobs[first])
        else:
            queue.enqueue_many(jobs[first : first + batch])


def rival(name: str, count: int) -> Row:
    """Measure one of the others."""
    python = ensure_environment(RIVALS, Path(".cache/bench"))
    script = Path(__file__).with_name("queue_rivals.py")
    with server() as url:
        command = [str(python), str(script), name, url, str(count)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    submit_s, drain_s = map(float, output.split())
    return Row(name, count / submit_s, count / drain_s)


def redis_alone() -> Iterator[Row]:
    """Measure what the server does with the cheapest command, if its benchmark is installed."""
    program = shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    if program is None:
        return
    for name, pipelined in (("redis-benchmark LPUSH", "1"), ("the same, 16 at a time", "16")):
        with server() as url:
            port = url.rpartition(":")[2].partition("/")[0]
            options = ["-p", port, "-t", "lpush", "-n", "100000", "-P", pipelined, "--csv"]
            output = subprocess.run([program, *options], check=True, capture_output=True, text=True)
            yield Row(name, float(output.stdout.splitlines()[-1].split(",")[1].strip('"')), None)


@contextmanager
def server() -> Iterator[str]:
    """Run an empty server with an append-only file."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": folder,
            "appendonly": "yes",
            "save": "",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with subprocess.Popen([embedded_server(), *words], stdout=subprocess.DEVNULL) as process:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_until_it_answers(url)
            try:
                yield url
            finally:
                process.kill()


@contextmanager
def noop_worker(url: str) -> Iterator[None]:
    """Run one worker whose engine does nothing."""
    environment = {
        **os.environ,  # noqa: TID251  the worker is a child of this process
        "PROMPTMILL_REDIS_URL": url,
        "PROMPTMILL_SLOTS": str(_SLOTS),
        "PROMPTMILL_COALESCE_MS": "0",  # there is no step that company would make cheaper
        "PROMPTMILL_LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "ops.bench.noop_worker"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _rate_of_ends(queue: JobQueue, count: int) -> float:
    begun_s, before = _wait_for(queue, 1)
    ended_s, after = _wait_for(queue, count)
    return (after - before) / (ended_s - begun_s)


def _wait_for(queue: JobQueue, count: int) -> tuple[float, int]:
    while (ended := queue.totals(_QUEUE).get("completed", 0)) < count:
        time.sleep(0.01)
    return time.monotonic(), ended


def _wait_until_it_answers(url: str) -> None:
    with connect(url) as client:
        for _ in range(500):
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.01)
            else:
                return


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


if __name__ == "__main__":
    main()
