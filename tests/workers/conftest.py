"""A queue on a real server, and clusters of real workers, for the tests of workers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from tests.support.cluster import Cluster
from tests.support.server import embedded_binary


@pytest.fixture
def store(redis_url: str) -> "Iterator[redis.Redis]":
    """Return a client of the session's server."""
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def jobs(store: "redis.Redis") -> JobQueue:
    """Return a queue that goes by the server's own clock."""
    return JobQueue(store, QueueLimits(lease_ms=60_000))


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a way to start a cluster with other settings; it is gone after the test."""
    clusters: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        cluster = Cluster(tmp_path / f"cluster-{len(clusters)}", embedded_binary(), **settings)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()
