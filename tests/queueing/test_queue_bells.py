import pytest

from queueing.job import Priority
from queueing.queue import ClaimCall
from tests.queueing.conftest import LEASE_MS
from tests.support.jobs import QUEUE, a_job, claim_one, enqueue


def ring(client, queue, at_least=Priority.BULK):
    """Take one token as a blocked worker does; return whether there was one."""
    return any(client.rpop(bell) for bell in queue.bells([QUEUE], "w1", at_least))


def test_a_new_job_rings_the_bell_of_workers_with_room(queue, client):
    enqueue(queue, a_job())

    assert ring(client, queue)


def test_many_jobs_leave_one_token(queue, client):
    enqueue(queue, *[a_job() for _ in range(5)])

    assert ring(client, queue)
    assert not ring(client, queue)


def test_a_claim_that_leaves_work_rings_again(queue, client):
    enqueue(queue, a_job(), a_job())
    ring(client, queue)

    claim_one(queue)

    assert ring(client, queue)


def test_a_claim_that_takes_all_does_not_ring(queue, client):
    enqueue(queue, a_job())
    ring(client, queue)

    claim_one(queue)

    assert not ring(client, queue)


@pytest.mark.parametrize(
    ("holds_least", "arrives", "rings"),
    [
        (Priority.REALTIME, Priority.REALTIME, True),
        (Priority.REALTIME, Priority.STANDARD, False),
        (Priority.STANDARD, Priority.STANDARD, True),
        (Priority.STANDARD, Priority.REALTIME, True),
        (Priority.STANDARD, Priority.BULK, False),
    ],
)
def test_a_full_worker_hears_only_of_work_it_has_room_for(
    queue, client, holds_least, arrives, rings
):
    enqueue(queue, a_job(priority=arrives))

    assert ring(client, queue, holds_least) is rings


def test_a_worker_without_any_room_takes_no_token_from_others(queue):
    assert queue.bells([QUEUE], "w1", None) == ["{pm}:worker:w1:inbox"]


def test_a_job_that_comes_back_rings(queue, client):
    enqueue(queue, a_job())
    ring(client, queue)
    claim = claim_one(queue)

    queue.release(claim.lease)

    assert ring(client, queue)


def test_a_job_that_was_lost_rings_when_it_is_reaped(queue, client, clock):
    enqueue(queue, a_job())
    ring(client, queue)
    claim_one(queue)
    clock.advance(LEASE_MS)

    queue.reap(QUEUE)

    assert ring(client, queue)


def test_a_delayed_job_rings_when_its_time_has_come(queue, client, clock):
    enqueue(queue, a_job(not_before_s=1.0))
    before = ring(client, queue)
    clock.advance(1_000)

    queue.reap(QUEUE)

    assert not before
    assert ring(client, queue)


def test_a_worker_that_waits_for_a_suspects_turn_does_not_ring_for_itself(queue, client, clock):
    enqueue(queue, a_job())
    for _ in range(2):
        claim_one(queue)
        clock.advance(LEASE_MS)
    queue.reap(QUEUE)
    ring(client, queue)

    queue.claim(QUEUE, "w1", 1, call=ClaimCall(held=1))

    assert not ring(client, queue)


def test_a_worker_can_be_woken(queue, client):
    queue.wake("w1")

    assert client.rpop("{pm}:worker:w1:inbox") == "wake"
