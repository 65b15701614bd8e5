import pytest

from queueing.errors import IdempotencyConflict, QueueFull, QueueShed, StaleLease
from queueing.job import BatchLine, Idempotency, JobState, Priority
from tests.support.jobs import (
    QUEUE,
    TENANT,
    a_job,
    claim_one,
    enqueue,
    finish,
    ids_of,
    state_of,
)

KEY = Idempotency("jobs", "once", "digest-1")
SAME_KEY_OTHER_BODY = Idempotency("jobs", "once", "digest-2")


def test_an_accepted_job_is_queued(queue):
    answer = queue.enqueue(a_job("job_a"))

    assert answer.created
    assert state_of(queue, "job_a") is JobState.QUEUED


def test_an_unknown_id_is_not_a_queued_job(queue):
    assert queue.get("job_never", TENANT) is None


def test_another_tenants_job_is_as_good_as_unknown(queue):
    enqueue(queue, a_job("job_a", tenant="theirs"))

    assert queue.get("job_a", TENANT) is None
    assert queue.cancel("job_a", TENANT) is None
    assert not queue.erase("job_a", TENANT)
    assert state_of(queue, "job_a", "theirs") is JobState.QUEUED


def test_enqueueing_the_same_id_again_changes_nothing(queue):
    enqueue(queue, a_job("job_a"))

    again = queue.enqueue(a_job("job_a", priority=Priority.BULK))

    assert not again.created
    assert queue.depth(QUEUE).ready[Priority.STANDARD] == 1
    assert queue.depth(QUEUE).ready[Priority.BULK] == 0


def test_enqueueing_an_ended_job_again_does_not_revive_it(queue):
    enqueue(queue, a_job("job_a"))
    finish(queue, claim_one(queue))

    queue.enqueue(a_job("job_a"))

    assert state_of(queue, "job_a") is JobState.COMPLETED
    assert queue.claim(QUEUE, "w1", 1) == []


def test_a_repeated_idempotency_key_gets_the_first_job(queue):
    queue.enqueue(a_job("job_a"), KEY)

    again = queue.enqueue(a_job("job_b"), KEY)

    assert (again.job_id, again.created) == ("job_a", False)
    assert queue.get("job_b", TENANT) is None


def test_a_repeated_key_with_another_body_is_a_conflict(queue):
    queue.enqueue(a_job("job_a"), KEY)

    with pytest.raises(IdempotencyConflict):
        queue.enqueue(a_job("job_b"), SAME_KEY_OTHER_BODY)


def test_keys_of_other_tenants_and_routes_are_other_keys(queue):
    queue.enqueue(a_job("job_a"), KEY)

    other_tenant = queue.enqueue(a_job("job_b", tenant="other"), KEY)
    other_route = queue.enqueue(a_job("job_c"), Idempotency("files", "once", "digest-1"))

    assert other_tenant.created
    assert other_route.created


def test_an_idempotency_key_is_forgotten_after_its_lifetime(queue, client):
    queue.enqueue(a_job("job_a"), KEY)

    (key,) = client.keys("*idempotency*")

    assert 0 < client.pttl(key) <= 86_400_000


def test_a_repeat_is_recognised_by_a_queue_that_is_full(make_queue):
    queue = make_queue(max_queued_jobs=1)
    queue.enqueue(a_job("job_a", priority=Priority.REALTIME), KEY)

    again = queue.enqueue(a_job("job_b", priority=Priority.REALTIME), KEY)

    assert again.job_id == "job_a"


def test_a_full_queue_refuses_and_says_when_to_come_back(make_queue):
    queue = make_queue(max_queued_jobs=1)
    enqueue(queue, a_job())

    with pytest.raises(QueueFull) as refusal:
        queue.enqueue(a_job("job_b"))

    assert refusal.value.retry_after_s > 0
    assert not isinstance(refusal.value, QueueShed)
    assert queue.get("job_b", TENANT) is None


def test_waiting_for_later_takes_room_too(make_queue):
    queue = make_queue(max_queued_jobs=1)
    enqueue(queue, a_job(not_before_s=60.0))

    with pytest.raises(QueueFull):
        queue.enqueue(a_job())


def test_running_jobs_leave_room_in_the_queue(make_queue):
    queue = make_queue(max_queued_jobs=1)
    enqueue(queue, a_job())
    claim_one(queue)

    assert queue.enqueue(a_job()).created


def test_many_jobs_are_accepted_in_one_round_trip(queue):
    answers = queue.enqueue_many([a_job("job_a"), a_job("job_b")])

    assert [answer.created for answer in answers] == [True, True]
    assert ids_of(queue.claim(QUEUE, "w1", 9)) == ["job_a", "job_b"]


def test_many_jobs_sent_twice_are_there_once(queue):
    jobs = [a_job("job_a"), a_job("job_b")]
    queue.enqueue_many(jobs)

    again = queue.enqueue_many(jobs)

    assert [answer.created for answer in again] == [False, False]
    assert queue.totals(QUEUE)["submitted"] == 2


def test_a_batch_line_needs_its_ticks_lease(queue):
    line = BatchLine("batch_x", 1, "first", fence=1)

    with pytest.raises(StaleLease):
        queue.enqueue(a_job("job_a", batch=line))

    assert queue.get("job_a", TENANT) is None


def test_a_delayed_job_is_not_handed_out_before_its_time(queue, clock):
    enqueue(queue, a_job("job_a", not_before_s=5.0))
    clock.advance(4_999)

    assert queue.claim(QUEUE, "w1", 1) == []


def test_a_delayed_job_is_handed_out_when_its_time_has_come(queue, clock):
    enqueue(queue, a_job("job_a", not_before_s=5.0))
    clock.advance(5_000)

    assert ids_of(queue.claim(QUEUE, "w1", 1)) == ["job_a"]


def test_a_delayed_job_whose_deadline_comes_first_expires(queue, clock):
    enqueue(queue, a_job("job_a", not_before_s=60.0, deadline_s=5.0))
    clock.advance(5_000)

    assert queue.claim(QUEUE, "w1", 1) == []
    assert state_of(queue, "job_a") is JobState.EXPIRED
    assert queue.depth(QUEUE).later == 0
