import pytest

from queueing.errors import StaleLease
from queueing.job import JobState
from tests.queueing.conftest import LEASE_MS
from tests.support.jobs import (
    QUEUE,
    TENANT,
    a_job,
    claim_one,
    enqueue,
    finish,
    state_of,
)


def test_a_queued_job_can_be_cancelled(queue):
    enqueue(queue, a_job("job_a"))

    assert queue.cancel("job_a", TENANT) is JobState.CANCELLED

    assert queue.claim(QUEUE, "w1", 1) == []
    assert queue.get("job_a", TENANT).result.error.code == "cancelled"


def test_a_delayed_job_can_be_cancelled(queue):
    enqueue(queue, a_job("job_a", not_before_s=60.0, deadline_s=90.0))

    queue.cancel("job_a", TENANT)

    assert queue.depth(QUEUE).later == 0


def test_the_worker_of_a_cancelled_job_is_told(queue, client):
    enqueue(queue, a_job("job_a"))
    claim_one(queue, "w1")

    queue.cancel("job_a", TENANT)

    assert client.lrange("{pm}:worker:w1:inbox", 0, -1) == ["cancel job_a"]
    assert client.pttl("{pm}:worker:w1:inbox") > 0


def test_a_cancel_that_comes_before_the_finish_wins(queue):
    enqueue(queue, a_job("job_a"))
    claim = claim_one(queue)

    answer = queue.cancel("job_a", TENANT)

    assert answer is JobState.CANCELLED
    with pytest.raises(StaleLease):
        finish(queue, claim)
    assert state_of(queue, "job_a") is JobState.CANCELLED


def test_a_cancel_that_comes_after_the_finish_hears_of_it(queue):
    enqueue(queue, a_job("job_a"))
    finish(queue, claim_one(queue))

    assert queue.cancel("job_a", TENANT) is JobState.COMPLETED
    assert state_of(queue, "job_a") is JobState.COMPLETED


def test_a_cancelled_job_is_not_revived_by_its_lease_running_out(queue, clock):
    enqueue(queue, a_job("job_a"))
    claim_one(queue)
    queue.cancel("job_a", TENANT)
    clock.advance(LEASE_MS)

    assert queue.reap(QUEUE) == 0
    assert state_of(queue, "job_a") is JobState.CANCELLED


def test_a_cancelled_job_cannot_be_released(queue):
    enqueue(queue, a_job("job_a"))
    claim = claim_one(queue)
    queue.cancel("job_a", TENANT)

    assert not queue.release(claim.lease)
    assert state_of(queue, "job_a") is JobState.CANCELLED


def test_a_job_that_was_released_is_cancelled_without_a_word_to_its_worker(queue, client):
    enqueue(queue, a_job("job_a"))
    queue.release(claim_one(queue, "w1").lease)

    queue.cancel("job_a", TENANT)

    assert not client.exists("{pm}:worker:w1:inbox")


def test_cancelling_an_unknown_job_says_that_there_is_none(queue):
    assert queue.cancel("job_never", TENANT) is None


def test_a_cancelled_job_queues_its_webhook(queue):
    enqueue(queue, a_job("job_a", webhook_url="https://example.com/hook"))

    queue.cancel("job_a", TENANT)

    (delivery,) = queue.claim("webhooks", "cpu", 9)
    assert "job.cancelled" in delivery.request


def test_an_expired_job_queues_its_webhook(queue, clock):
    enqueue(queue, a_job("job_a", deadline_s=1.0, webhook_url="https://example.com/hook"))
    clock.advance(1_001)

    queue.expire(QUEUE)

    (delivery,) = queue.claim("webhooks", "cpu", 9)
    assert "job.expired" in delivery.request


def test_a_dead_job_queues_its_webhook(queue, clock):
    enqueue(queue, a_job("job_a", max_losses=1, webhook_url="https://example.com/hook"))
    claim_one(queue)
    clock.advance(LEASE_MS)

    queue.reap(QUEUE)

    (delivery,) = queue.claim("webhooks", "cpu", 9)
    assert "job.dead" in delivery.request


def test_an_ended_job_is_erased_with_its_texts(queue, client):
    enqueue(queue, a_job("job_a"))
    finish(queue, claim_one(queue))

    assert queue.erase("job_a", TENANT)

    assert client.keys("{pm}:job:job_a*") == []


def test_a_queued_job_is_erased_and_leaves_the_queue(queue):
    enqueue(queue, a_job("job_a"))

    assert queue.erase("job_a", TENANT)

    assert queue.get("job_a", TENANT) is None
    assert queue.claim(QUEUE, "w1", 1) == []


def test_a_running_job_is_erased_and_its_worker_finds_it_gone(queue):
    enqueue(queue, a_job("job_a"))
    claim = claim_one(queue)

    queue.erase("job_a", TENANT)

    assert queue.renew([claim.lease]) == {"job_a"}
    with pytest.raises(StaleLease):
        finish(queue, claim)
    assert queue.get("job_a", TENANT) is None


def test_an_erased_job_cannot_be_erased_again(queue):
    enqueue(queue, a_job("job_a"))
    queue.erase("job_a", TENANT)

    assert not queue.erase("job_a", TENANT)
