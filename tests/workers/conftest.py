"""A queue on a real server, for the tests of workers."""

from collections.abc import Iterator

import pytest
import redis

from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect


@pytest.fixture
def store(redis_url: str) -> "Iterator[redis.Redis]":
    """Return a client of the session's server."""
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def jobs(store: "redis.Redis") -> JobQueue:
    """Return a queue that goes by the server's own clock."""
    return JobQueue(store, QueueLimits(lease_ms=60_000))
