from dataclasses import replace

import pytest

from queueing.errors import FailureCode, StaleLease
from queueing.job import JobResult, JobState, Outcome
from tests.support.jobs import (
    QUEUE,
    TENANT,
    a_job,
    a_result,
    claim_one,
    enqueue,
    finish,
    ids_of,
    state_of,
)

FAILURE = JobResult.failure(JobState.FAILED, FailureCode.ENGINE_ERROR, "it broke")


def test_a_finished_job_has_its_result(queue):
    enqueue(queue, a_job("job_a"))
    claim = claim_one(queue)

    queue.finish(Outcome(claim.lease, a_result("hello", tokens=3)))

    record = queue.get("job_a", TENANT)
    assert record.state is JobState.COMPLETED
    assert record.result == a_result("hello", tokens=3)


def test_a_failed_job_says_why(queue):
    enqueue(queue, a_job("job_a"))

    queue.finish(Outcome(claim_one(queue).lease, FAILURE))

    assert queue.get("job_a", TENANT).result == FAILURE


def test_the_times_of_a_job_are_those_of_the_store(queue, clock):
    enqueue(queue, a_job("job_a"))
    clock.advance(2_000)
    claim = claim_one(queue)
    clock.advance(3_000)
    queue.finish(Outcome(claim.lease, a_result(stages={"decode_ms": 2.5})))

    record = queue.get("job_a", TENANT)

    assert record.started_s - record.arrival_s == 2.0
    assert record.finished_s - record.arrival_s == 5.0
    assert record.stages == {"validate_ms": 0.0, "queue_ms": 2_000.0, "decode_ms": 2.5}


def test_a_job_finished_after_its_deadline_is_expired_not_completed(queue, clock):
    enqueue(queue, a_job("job_a", deadline_s=5.0))
    claim = claim_one(queue)
    clock.advance(5_001)

    assert finish(queue, claim) is JobState.EXPIRED
    assert queue.get("job_a", TENANT).result.error.code == "deadline_exceeded"


def test_a_job_finished_on_its_deadline_is_completed(queue, clock):
    enqueue(queue, a_job(deadline_s=5.0))
    claim = claim_one(queue)
    clock.advance(5_000)

    assert finish(queue, claim) is JobState.COMPLETED


def test_a_failure_after_the_deadline_stays_a_failure(queue, clock):
    enqueue(queue, a_job(deadline_s=5.0))
    claim = claim_one(queue)
    clock.advance(5_001)

    assert queue.finish(Outcome(claim.lease, FAILURE)) is JobState.FAILED


def test_a_repeated_finish_is_answered_like_the_first(queue):
    enqueue(queue, a_job())
    claim = claim_one(queue)
    finish(queue, claim)

    assert finish(queue, claim) is JobState.COMPLETED
    assert queue.totals(QUEUE)["completed"] == 1


def test_a_repeated_finish_writes_nothing(queue):
    enqueue(queue, a_job("job_a"))
    claim = claim_one(queue)
    queue.finish(Outcome(claim.lease, a_result("first")))

    queue.finish(Outcome(claim.lease, a_result("second")))

    assert queue.get("job_a", TENANT).result == a_result("first")


def test_only_the_newest_holder_may_finish(queue, clock):
    enqueue(queue, a_job("job_a"))
    zombie = claim_one(queue, "w1")
    clock.advance(15_001)
    newest = claim_one(queue, "w2")

    with pytest.raises(StaleLease):
        queue.finish(Outcome(zombie.lease, a_result("of the zombie")))
    queue.finish(Outcome(newest.lease, a_result("of the newest")))

    assert queue.get("job_a", TENANT).result == a_result("of the newest")
    assert queue.totals(QUEUE)["stale"] == 1


def test_a_zombie_that_comes_after_the_newest_changes_nothing(queue, clock):
    enqueue(queue, a_job("job_a"))
    zombie = claim_one(queue, "w1")
    clock.advance(15_001)
    finish(queue, claim_one(queue, "w2"))

    assert queue.finish_many([Outcome(zombie.lease, a_result("late"))]) == [None]
    assert queue.get("job_a", TENANT).result == a_result()


def test_a_fence_from_the_future_may_not_finish(queue):
    enqueue(queue, a_job())
    lease = claim_one(queue).lease

    with pytest.raises(StaleLease):
        queue.finish(Outcome(replace(lease, fence=lease.fence + 1), a_result()))


def test_a_queued_job_cannot_be_finished_with_its_old_fence(queue):
    enqueue(queue, a_job("job_a"))
    claim = claim_one(queue)
    queue.release(claim.lease)

    with pytest.raises(StaleLease):
        finish(queue, claim)

    assert state_of(queue, "job_a") is JobState.QUEUED


def test_a_lease_that_ran_out_but_was_not_taken_over_may_finish(queue, clock):
    enqueue(queue, a_job())
    claim = claim_one(queue)
    clock.advance(60_000)

    assert finish(queue, claim) is JobState.COMPLETED


def test_an_unknown_job_cannot_be_finished(queue):
    enqueue(queue, a_job())
    lease = claim_one(queue).lease

    with pytest.raises(StaleLease):
        queue.finish(Outcome(replace(lease, job_id="job_never"), a_result()))

    assert "stale" not in queue.totals(QUEUE)


def test_many_results_are_taken_each_for_itself(queue):
    enqueue(queue, a_job(), a_job())
    held, handed_back = queue.claim(QUEUE, "w1", 2)
    queue.release(handed_back.lease)

    states = queue.finish_many(
        [Outcome(handed_back.lease, a_result()), Outcome(held.lease, a_result())]
    )

    assert states == [None, JobState.COMPLETED]


def test_texts_and_record_get_their_lifetimes_at_the_end(make_queue, client):
    queue = make_queue(result_ttl_ms=1_000_000, record_ttl_ms=5_000_000)
    enqueue(queue, a_job("job_a"))
    finish(queue, claim_one(queue))

    assert 0 < client.pttl("{pm}:job:job_a:request") <= 1_000_000
    assert 0 < client.pttl("{pm}:job:job_a:result") <= 1_000_000
    assert 1_000_000 < client.pttl("{pm}:job:job_a") <= 5_000_000


def test_a_live_jobs_keys_have_no_lifetime(queue, client):
    enqueue(queue, a_job("job_a"))
    claim_one(queue)

    assert client.pttl("{pm}:job:job_a") == -1
    assert client.pttl("{pm}:job:job_a:request") == -1


def test_a_result_whose_text_is_gone_says_so(queue, client):
    enqueue(queue, a_job("job_a"))
    finish(queue, claim_one(queue))
    client.delete("{pm}:job:job_a:result")  # as its lifetime does

    record = queue.get("job_a", TENANT)

    assert record.state is JobState.COMPLETED
    assert record.result is None
    assert record.result_expired


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.EXPIRED])
def test_every_end_by_a_worker_queues_its_webhook(queue, state):
    enqueue(queue, a_job("job_a", webhook_url="https://example.com/hook"))
    result = replace(a_result(), state=state)

    queue.finish(Outcome(claim_one(queue).lease, result))

    (delivery,) = queue.claim("webhooks", "cpu", 9)
    assert delivery.lease.job_id == "evt_a"
    assert f"job.{state.value}" in delivery.request


def test_an_end_is_announced_to_those_who_wait(queue, client):
    enqueue(queue, a_job("job_a"))
    claim = claim_one(queue)
    with client.pubsub() as subscription:
        subscription.subscribe("{pm}:ended")
        subscription.get_message(timeout=5)

        finish(queue, claim)

        assert subscription.get_message(timeout=5)["data"] == "job_a"


def test_an_ended_job_is_in_no_list(queue):
    enqueue(queue, a_job())
    finish(queue, claim_one(queue))

    depth = queue.depth(QUEUE)

    assert (sum(depth.ready.values()), depth.later, depth.leased) == (0, 0, 0)
    assert ids_of(queue.claim(QUEUE, "w1", 9)) == []
