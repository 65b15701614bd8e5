"""A queue on a real server, under a clock that stands still."""

from collections.abc import Callable, Iterator

import pytest
import redis

from queueing.clock import ManualClock
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect

LEASE_MS = 15_000


@pytest.fixture
def client(redis_url: str) -> "Iterator[redis.Redis]":
    """Return a client that sees the keys as they are."""
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    """Return the clock that all scripts of the test go by."""
    return ManualClock()


@pytest.fixture
def make_queue(client: "redis.Redis", clock: ManualClock) -> Callable[..., JobQueue]:
    """Return a way to make a queue with other limits; all of them share keys and clock."""

    def make(**limits: int) -> JobQueue:
        return JobQueue(client, QueueLimits(**limits), clock=clock)

    return make


@pytest.fixture
def queue(make_queue: Callable[..., JobQueue]) -> JobQueue:
    """Return a queue with the default limits."""
    return make_queue(lease_ms=LEASE_MS)
