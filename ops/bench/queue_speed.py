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

import psutil
import redis

from ops.bench.noop_worker import MODEL
from ops.bench.venvs import Environment, ensure_environment
from ops.stack import embedded_server, free_port
from queueing.job import Job, generate_queue, new_id
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from queueing.wire import GenerateRequest, encode_request

RIVALS = Environment(
    "queues", ("celery[redis]==5.7.0", "rq==3.0.0", "dramatiq[redis]==2.2.1", "huey==3.5.4")
)
NAMES = ("celery-solo", "celery-solo-events", "celery-threads", "rq", "dramatiq", "huey")
PAYLOAD = "x" * 400
_SLOTS = 64
_BATCH = 256
_QUEUE = generate_queue(MODEL)


@dataclass(frozen=True, slots=True)
class Row:
    """One system: rates in jobs a second, and the microseconds of processor time a job takes.

    None where it does not apply. Processor time is what stays true on a machine that others use.
    """

    name: str
    submit: float | None
    end_to_end: float | None = None
    submit_us: float | None = None
    worker_us: float | None = None
    store_us: float | None = None


def main() -> None:
    """Measure all and print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    rows = [
        ours("promptmill, one call a job", count, batch=1),
        ours(f"promptmill, {_BATCH} jobs a call", count, batch=_BATCH),
        ours("the same, without Celery's events", count, batch=_BATCH, TASK_EVENTS="false"),
        *(rival(name, count) for name in NAMES),
        *redis_alone(),
    ]
    sys.stdout.write(
        "| system | submit, jobs/s | end to end, jobs/s | submit, us | worker, us | store, us |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
    )
    for row in rows:
        figures = (row.submit, row.end_to_end, row.submit_us, row.worker_us, row.store_us)
        sys.stdout.write(f"| {row.name} | {' | '.join(map(_figure, figures))} |\n")


def ours(name: str, count: int, *, batch: int, **settings: str) -> Row:
    """Measure our queue with our transport and pool, under real Celery."""
    with server() as url, connect(url) as client:
        queue = JobQueue(client, QueueLimits(max_queued_jobs=2 * count))
        begun, begun_cpu = time.monotonic(), time.process_time()
        submit(queue, count, batch)
        submit_s, submit_cpu_s = time.monotonic() - begun, time.process_time() - begun_cpu
        with noop_worker(url, **settings) as worker:
            rate, worker_us = _served(queue, worker, count)
        submit_us = submit_cpu_s / count * 1e6
        return Row(name, count / submit_s, rate, submit_us, worker_us, _store_us(client, count))


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
    with server() as url, connect(url) as client:
        command = [str(python), str(script), name, url, str(count)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        store_us = _store_us(client, count)
    submit_s, submit_cpu_s, drain_s, worker_cpu_s = map(float, output.split())
    return Row(
        name,
        count / submit_s,
        count / drain_s,
        submit_cpu_s / count * 1e6,
        worker_cpu_s / count * 1e6,
        store_us,
    )


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
            yield Row(name, float(output.stdout.splitlines()[-1].split(",")[1].strip('"')))


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
def noop_worker(url: str, **settings: str) -> Iterator[psutil.Process]:
    """Run one worker whose engine does nothing."""
    named = {
        "REDIS_URL": url,
        "SLOTS": str(_SLOTS),
        "COALESCE_MS": "0",  # there is no step that company would make cheaper
        "LOG_LEVEL": "WARNING",
        **settings,
    }
    environment = {
        **os.environ,  # noqa: TID251  the worker is a child of this process
        **{f"PROMPTMILL_{name}": value for name, value in named.items()},
    }
    command = [sys.executable, "-m", "ops.bench.noop_worker"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def _served(queue: JobQueue, worker: psutil.Process, count: int) -> tuple[float, float]:
    """Return jobs a second from the first end to the last, and the worker's microseconds a job."""
    begun_s, before = _wait_for(queue, 1)
    begun_cpu_s = sum(worker.cpu_times()[:2])
    ended_s, after = _wait_for(queue, count)
    cpu_s = sum(worker.cpu_times()[:2]) - begun_cpu_s
    return (after - before) / (ended_s - begun_s), cpu_s / (after - before) * 1e6


def _store_us(client: "redis.Redis", count: int) -> float:
    usage = client.info("cpu")
    return (float(usage["used_cpu_user"]) + float(usage["used_cpu_sys"])) / count * 1e6


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


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


if __name__ == "__main__":
    main()
