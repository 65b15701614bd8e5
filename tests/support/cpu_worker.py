"""The CPU worker's part in a test: threads that claim from one queue and run what they get."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from queueing import keys
from queueing.job import Lease
from queueing.queue import JobQueue

PREFIX = "{pm}:"
# What waits for its time is found by claiming; all threads together look this often.
_LOOKS_PER_S = 50


@contextmanager
def cpu_worker(
    url: str, queue: JobQueue, name: str, work: Callable[[Lease, str], None], *, slots: int
) -> Iterator[None]:
    """Run `slots` threads that claim one job of queue `name` at a time until the block ends."""
    stopped = threading.Event()
    client = redis.Redis.from_url(url, max_connections=slots + 1)
    bell = keys.BELL.of(PREFIX, queue=name)

    def serve() -> None:
        while not stopped.is_set():
            for claim in queue.claim(name, "test-worker", limit=1):
                work(claim.lease, claim.request)
                break
            else:
                client.blpop([bell], timeout=slots / _LOOKS_PER_S)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(slots)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        client.lpush(bell, *["stop"] * slots)
        for thread in threads:
            thread.join()
        client.close()
