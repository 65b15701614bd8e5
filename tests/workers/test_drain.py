"""How a worker stops. What SIGTERM does while all is well is in tests/faults."""

import signal

import pytest

from tests.support.jobs import QUEUE


@pytest.fixture
def cluster(make_cluster):
    return make_cluster(grace_s=0.5)


def start_worker(cluster):
    worker = cluster.start_worker(step_ms=10)
    cluster.wait_until(lambda: "ready" in worker.log)
    return worker


def test_an_idle_worker_stops_while_the_store_is_away(cluster):
    worker = start_worker(cluster)
    cluster.server.kill9()
    cluster.wait_until(lambda: "Cannot connect" in worker.log)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0


def test_a_worker_with_jobs_stops_after_its_grace_while_the_store_is_away(cluster):
    worker = start_worker(cluster)
    cluster.ledger.submit(cluster.queue, "prompt", 3_000)
    cluster.wait_until(lambda: cluster.num_running() == 1)
    cluster.server.kill9()
    cluster.wait_until(lambda: "Cannot connect" in worker.log)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    cluster.server.start()
    cluster.wait_until(lambda: cluster.queue.reap(QUEUE) == 1)  # its lease has run out
