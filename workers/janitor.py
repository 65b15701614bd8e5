"""Janitor: takes back, expires and makes ready what no worker's claim has looked at. Safe to run
anywhere, any often.

It runs as a job of its own queue that is always there and always due again a little later. Celery
beat only makes sure of that, and sweeps itself in case no CPU worker lives.
"""

import time
from collections.abc import Callable, Sequence

from queueing.errors import StoreUnavailable
from queueing.job import JANITOR_ID, JANITOR_QUEUE, Job, Lease
from queueing.queue import JobQueue

SWEEP_EVERY_S = 5.0
_ASK_AGAIN_S = 1.0


class Janitor:
    """Sweeps all queues, and whatever else has to be swept."""

    def __init__(self, queue: JobQueue, also: Sequence[Callable[[], object]] = ()) -> None:
        self._queue = queue
        self._also = also

    def ensure(self) -> None:
        """Make sure that the janitor's job exists."""
        self._queue.enqueue(Job(JANITOR_ID, JANITOR_QUEUE, "{}", max_losses=0))

    def insist(self) -> None:
        """Make sure of it however long the store is away; for a thread of its own."""
        while True:
            try:
                self.ensure()
            except StoreUnavailable:
                time.sleep(_ASK_AGAIN_S)
            else:
                return

    def run(self, lease: Lease) -> None:
        """Sweep once as a leased job, and be due again."""
        self.sweep()
        self._queue.release(lease, delay_s=SWEEP_EVERY_S)

    def sweep(self) -> int:
        """Sweep once; return how many jobs were moved."""
        num_moved = 0
        for queue in self._queue.queues():
            num_moved += self._queue.reap(queue) + self._queue.expire(queue)
        for sweep in self._also:
            sweep()
        return num_moved
