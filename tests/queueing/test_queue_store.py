"""What the queue does when its store can't do its part."""

import pytest
import redis

from queueing.errors import StoreUnavailable
from queueing.job import JobState
from queueing.queue import JobQueue
from queueing.store import connect
from tests.support.jobs import QUEUE, TENANT, a_job, claim_one, enqueue, finish, state_of
from tests.support.server import RedisServer, embedded_binary


@pytest.fixture
def full_store(client):
    """Return a way to let the server have no more memory; undone at the end."""

    def fill():
        client.config_set("maxmemory", 1)

    yield fill
    client.config_set("maxmemory", 0)


@pytest.fixture
def mortal_server(tmp_path):
    """Return a server that a test may kill."""
    server = RedisServer(tmp_path / "redis", embedded_binary())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def connect_to():
    """Return a way to a queue on a server; what was connected is closed."""
    clients = []

    def make(server, **options):
        clients.append(connect(server.url, **options))
        return JobQueue(clients[-1])

    yield make
    for client in clients:
        client.close()


def test_a_store_without_memory_admits_nothing(queue, full_store):
    full_store()

    with pytest.raises(StoreUnavailable) as refusal:
        queue.enqueue(a_job("job_a"))

    assert refusal.value.kind == "oom"
    assert queue.get("job_a", TENANT) is None


def test_what_was_accepted_completes_in_a_store_without_memory(queue, full_store):
    enqueue(queue, a_job("job_a", webhook_url="https://example.com/hook"))
    full_store()

    finish(queue, claim_one(queue))

    assert state_of(queue, "job_a") is JobState.COMPLETED


def test_jobs_can_leave_a_store_without_memory_in_every_way(queue, full_store):
    enqueue(queue, a_job("job_a"), a_job("job_b", deadline_s=0.0), a_job("job_c"))
    full_store()

    queue.expire(QUEUE)
    claim = claim_one(queue)
    queue.renew([claim.lease])
    queue.release(claim.lease)
    queue.cancel("job_a", TENANT)
    queue.erase("job_c", TENANT)

    assert state_of(queue, "job_a") is JobState.CANCELLED
    assert state_of(queue, "job_b") is JobState.EXPIRED
    assert queue.get("job_c", TENANT) is None


def test_service_returns_with_the_memory(queue, full_store, client):
    full_store()
    with pytest.raises(StoreUnavailable):
        queue.enqueue(a_job())

    client.config_set("maxmemory", 0)

    assert queue.enqueue(a_job()).created


def test_a_store_that_is_away_is_said_to_be(mortal_server, connect_to):
    queue = connect_to(mortal_server)
    mortal_server.kill9()

    with pytest.raises(StoreUnavailable) as refusal:
        queue.enqueue(a_job())

    assert refusal.value.kind == "connection"


def test_a_store_that_hangs_does_not_hang_its_callers(mortal_server, connect_to):
    queue = connect_to(mortal_server, timeout_s=0.2)
    mortal_server.suspend()

    with pytest.raises(StoreUnavailable) as refusal:
        queue.enqueue(a_job())

    mortal_server.resume()
    assert refusal.value.kind == "timeout"


def test_a_store_that_comes_back_needs_nothing_to_be_done(mortal_server, connect_to):
    queue = connect_to(mortal_server)
    enqueue(queue, a_job("job_a"))

    mortal_server.restart()

    assert claim_one(queue).lease.job_id == "job_a"


def test_what_a_script_did_survives_the_loss_of_its_cache(queue, client):
    enqueue(queue, a_job("job_a"))

    client.script_flush()

    assert claim_one(queue).lease.job_id == "job_a"


def test_a_fault_of_a_script_is_no_loss_of_the_store(queue, client):
    client.set("{pm}:queue:generate.fake:leases", "not a sorted set")

    with pytest.raises(redis.ResponseError):
        queue.claim(QUEUE, "w1", 1)
