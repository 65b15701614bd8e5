"""The queues a user would pick instead of ours, each doing the same nothing.

`python queue_rivals.py NAME URL COUNT` submits COUNT jobs of 400 characters, starts one worker, and
prints four numbers: the seconds of the submits and their processor time, the seconds from the first
job to the last and the worker's processor time in them. Imports nothing of ours.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import redis

PAYLOAD = "x" * 400
FIRST, LAST = "bench:first", "bench:last"
_URL, _COUNT = sys.argv[2], int(sys.argv[3])


def note(number: int) -> None:
    """Be the job: do nothing, but let the first and the last one say when they ran."""
    if number in (0, _COUNT - 1):
        now = f"{time.monotonic()} {time.process_time()}"
        redis.Redis.from_url(_URL).set(FIRST if number == 0 else LAST, now)


def celery_app() -> Any:
    """Return a stock Celery app: late acknowledgement, no results."""
    from celery import Celery

    app = Celery("bench", broker=_URL)
    app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=4)

    @app.task(name="bench.note")
    def _note(number: int, payload: str) -> None:
        del payload
        note(number)

    return app


def dramatiq_actor() -> Any:
    """Return a Dramatiq actor on a Redis broker."""
    import dramatiq  # type: ignore[import-not-found]  # theirs
    from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]  # theirs

    dramatiq.set_broker(RedisBroker(url=_URL))

    @dramatiq.actor  # type: ignore[untyped-decorator]
    def _note(number: int, payload: str) -> None:
        del payload
        note(number)

    return _note


def huey_task() -> Any:
    """Return a Huey task on Redis."""
    from huey import RedisHuey  # type: ignore[import-not-found]  # theirs

    huey = RedisHuey("bench", url=_URL, results=False)

    @huey.task(name="note")  # type: ignore[untyped-decorator]
    def _note(number: int, payload: str) -> None:
        del payload
        note(number)

    return huey, _note


def rq_note(number: int, payload: str) -> None:
    """Be RQ's job, which is found by its import path."""
    del payload
    note(number)


def submitters() -> dict[str, Callable[[], Callable[[int], object]]]:
    """Return how each rival takes one job."""

    def celery() -> Callable[[int], object]:
        task = celery_app().tasks["bench.note"]
        return lambda number: task.apply_async((number, PAYLOAD))

    def rq() -> Callable[[int], object]:
        from rq import Queue  # type: ignore[import-not-found]  # theirs

        queue = Queue("bench", connection=redis.Redis.from_url(_URL))
        return lambda number: queue.enqueue("queue_rivals.rq_note", number, PAYLOAD)

    def dramatiq() -> Callable[[int], object]:
        actor = dramatiq_actor()
        return lambda number: actor.send(number, PAYLOAD)

    def huey() -> Callable[[int], object]:
        _, task = huey_task()
        return lambda number: task(number, PAYLOAD)

    return {
        "celery-solo": celery,
        "celery-solo-events": celery,
        "celery-threads": celery,
        "rq": rq,
        "dramatiq": dramatiq,
        "huey": huey,
    }


def work(name: str) -> None:
    """Run one worker of a rival until it is killed."""
    if name.startswith("celery"):
        pool = ["-P", "threads", "-c", "8"] if name == "celery-threads" else ["-P", "solo"]
        events = ["-E"] if name == "celery-solo-events" else []
        options = ["--without-gossip", "--without-mingle", "-l", "WARNING", *pool, *events]
        celery_app().worker_main(["worker", *options])
    elif name == "rq":
        from rq import Queue, SimpleWorker

        connection = redis.Redis.from_url(_URL)
        SimpleWorker([Queue("bench", connection=connection)], connection=connection).work(
            logging_level="ERROR"
        )
    elif name == "dramatiq":
        import dramatiq

        dramatiq_actor()
        dramatiq.Worker(dramatiq.get_broker(), worker_threads=8).start()
        time.sleep(3_600)
    else:
        huey, _ = huey_task()
        huey.create_consumer(workers=8, worker_type="thread", initial_delay=0.01).run()


def main() -> None:
    """Measure one rival."""
    name = sys.argv[1]
    if len(sys.argv) > 4:
        work(name)
        return
    submit = submitters()[name]()
    begun, begun_cpu = time.monotonic(), time.process_time()
    for number in range(_COUNT):
        submit(number)
    submit_s, submit_cpu_s = time.monotonic() - begun, time.process_time() - begun_cpu
    with subprocess.Popen(
        [sys.executable, *sys.argv, "work"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=sys.path[0],
    ) as worker:
        client = redis.Redis.from_url(_URL)
        while not client.exists(LAST):
            time.sleep(0.05)
        (first_s, first_cpu_s), (last_s, last_cpu_s) = (
            map(float, (client.get(key) or b"").split()) for key in (FIRST, LAST)
        )
        worker.kill()
    measured = (submit_s, submit_cpu_s, last_s - first_s, last_cpu_s - first_cpu_s)
    sys.stdout.write(" ".join(map(str, measured)) + "\n")


if __name__ == "__main__":
    main()
