from queueing.job import JobState, Priority
from queueing.queue import ClaimCall
from tests.queueing.conftest import LEASE_MS
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


def lose(queue, clock, job_id, times):
    """Let the job's worker die this often."""
    for _ in range(times):
        claimed = ids_of(queue.claim(QUEUE, "doomed", 1))
        assert claimed == [job_id]
        clock.advance(LEASE_MS)


def test_a_renewed_lease_is_not_taken_over(queue, clock):
    enqueue(queue, a_job())
    claim = claim_one(queue)
    clock.advance(LEASE_MS - 1)

    assert queue.renew([claim.lease]) == set()

    clock.advance(LEASE_MS - 1)
    assert queue.claim(QUEUE, "w2", 1) == []


def test_a_lease_that_was_not_renewed_is_taken_over_at_the_next_claim(queue, clock):
    enqueue(queue, a_job("job_a"))
    claim_one(queue, "w1")
    clock.advance(LEASE_MS)

    claim = claim_one(queue, "w2")

    assert claim.lease.job_id == "job_a"
    assert claim.losses == 1


def test_renewing_names_what_was_taken_over(queue, clock):
    enqueue(queue, a_job("job_a"), a_job("job_b"))
    first, second = queue.claim(QUEUE, "w1", 2)
    finish(queue, second)
    clock.advance(LEASE_MS)
    queue.claim(QUEUE, "w2", 1)

    assert queue.renew([first.lease, second.lease]) == {"job_a", "job_b"}


def test_a_lease_that_ran_out_can_be_renewed_while_nobody_took_it(queue, clock):
    enqueue(queue, a_job())
    claim = claim_one(queue)
    clock.advance(LEASE_MS)

    assert queue.renew([claim.lease]) == set()

    assert queue.claim(QUEUE, "w2", 1) == []


def test_renewing_nothing_asks_nobody(queue):
    assert queue.renew([]) == set()


def test_a_released_job_is_queued_again_without_a_loss(queue):
    enqueue(queue, a_job("job_a"))

    assert queue.release(claim_one(queue).lease)

    assert state_of(queue, "job_a") is JobState.QUEUED
    assert claim_one(queue).losses == 0


def test_a_released_job_keeps_its_place(queue, clock):
    enqueue(queue, a_job("job_first"))
    clock.advance(10)
    enqueue(queue, a_job("job_second"))

    queue.release(claim_one(queue).lease)

    assert ids_of(queue.claim(QUEUE, "w1", 2)) == ["job_first", "job_second"]


def test_a_job_released_with_a_delay_waits(queue, clock):
    enqueue(queue, a_job("job_a"))
    queue.release(claim_one(queue).lease, delay_s=3.0)

    before = queue.claim(QUEUE, "w1", 1)
    clock.advance(3_000)

    assert before == []
    assert ids_of(queue.claim(QUEUE, "w1", 1)) == ["job_a"]


def test_a_release_can_leave_the_next_worker_another_request(queue):
    enqueue(queue, a_job(request="attempt 1"))

    queue.release(claim_one(queue).lease, request="attempt 2")

    assert claim_one(queue).request == "attempt 2"


def test_only_the_holder_can_release(queue, clock):
    enqueue(queue, a_job("job_a"))
    zombie = claim_one(queue, "w1")
    clock.advance(LEASE_MS)
    claim_one(queue, "w2")

    assert not queue.release(zombie.lease)
    assert state_of(queue, "job_a") is JobState.RUNNING


def test_a_job_is_released_once(queue):
    enqueue(queue, a_job())
    claim = claim_one(queue)

    assert queue.release(claim.lease)
    assert not queue.release(claim.lease)


def test_a_job_that_is_lost_three_times_is_dead(queue, clock):
    enqueue(queue, a_job("job_a"))

    lose(queue, clock, "job_a", times=3)

    assert queue.claim(QUEUE, "w1", 1) == []
    record = queue.get("job_a", TENANT)
    assert (record.state, record.losses) == (JobState.DEAD, 3)
    assert record.result.error.code == "worker_lost"


def test_a_job_can_have_its_own_number_of_losses(queue, clock):
    enqueue(queue, a_job("job_a", max_losses=1))

    lose(queue, clock, "job_a", times=1)

    assert queue.reap(QUEUE) == 1
    assert state_of(queue, "job_a") is JobState.DEAD


def test_a_job_that_is_never_given_up_comes_back_for_ever(queue, clock):
    enqueue(queue, a_job("job_a", max_losses=0))

    lose(queue, clock, "job_a", times=10)

    assert claim_one(queue).losses == 10


def test_reaping_is_bounded_and_says_how_many(queue, clock):
    enqueue(queue, *[a_job() for _ in range(5)])
    queue.claim(QUEUE, "w1", 5)
    clock.advance(LEASE_MS)

    assert [queue.reap(QUEUE, limit=3), queue.reap(QUEUE, limit=3)] == [3, 2]
    assert queue.reap(QUEUE) == 0


def test_two_reapers_count_one_loss(queue, clock):
    enqueue(queue, a_job())
    claim_one(queue)
    clock.advance(LEASE_MS)

    assert queue.reap(QUEUE) + queue.reap(QUEUE) == 1
    assert claim_one(queue).losses == 1


def test_expiring_is_bounded_and_says_how_many(queue, clock):
    enqueue(queue, *[a_job(deadline_s=1.0) for _ in range(5)])
    clock.advance(1_001)

    assert [queue.expire(QUEUE, limit=3), queue.expire(QUEUE, limit=3)] == [3, 2]
    assert queue.totals(QUEUE)["expired"] == 5


def test_a_running_job_is_not_expired_by_others(queue, clock):
    enqueue(queue, a_job("job_a", deadline_s=1.0))
    claim_one(queue)
    clock.advance(1_001)

    assert queue.expire(QUEUE) == 0
    assert state_of(queue, "job_a") is JobState.RUNNING


def test_a_lost_job_whose_deadline_has_passed_expires(queue, clock):
    enqueue(queue, a_job("job_a", deadline_s=1.0))
    claim_one(queue)
    clock.advance(LEASE_MS)

    assert queue.claim(QUEUE, "w2", 1) == []
    assert state_of(queue, "job_a") is JobState.EXPIRED


def test_a_suspect_goes_alone_to_a_worker_that_holds_nothing(queue, clock):
    enqueue(queue, a_job("job_suspect"))
    lose_first(queue, clock, times=2)
    enqueue(queue, a_job("job_other"))

    claims = queue.claim(QUEUE, "w1", 9)

    assert ids_of(claims) == ["job_suspect"]
    assert claims[0].must_run_alone


def test_a_worker_that_holds_something_gets_nothing_while_a_suspect_waits(queue, clock):
    enqueue(queue, a_job("job_suspect"))
    lose_first(queue, clock, times=2)
    enqueue(queue, a_job("job_other"))

    assert queue.claim(QUEUE, "w1", 9, call=ClaimCall(held=1)) == []


def test_work_more_urgent_than_a_suspect_goes_on(queue, clock):
    enqueue(queue, a_job("job_suspect"))
    lose_first(queue, clock, times=2)
    enqueue(queue, a_job("job_urgent", priority=Priority.REALTIME))

    claims = queue.claim(QUEUE, "w1", 9, call=ClaimCall(held=1))

    assert ids_of(claims) == ["job_urgent"]


def test_other_workers_pass_suspects_over_and_go_on(queue, clock):
    enqueue(queue, a_job("job_suspect"))
    lose_first(queue, clock, times=2)
    enqueue(queue, *[a_job(f"job_{number}") for number in range(3)])
    queue.claim(QUEUE, "isolator", 9, call=ClaimCall(held=1))

    claims = queue.claim(QUEUE, "other", 9, call=ClaimCall(held=1))

    assert ids_of(claims) == ["job_0", "job_1", "job_2"]
    assert ids_of(queue.claim(QUEUE, "isolator", 9)) == ["job_suspect"]


def test_the_suspects_of_a_worker_that_is_gone_are_seen_to_by_another(queue, clock):
    enqueue(queue, a_job("job_suspect"))
    lose_first(queue, clock, times=2)
    queue.claim(QUEUE, "isolator", 9, call=ClaimCall(held=1))
    clock.advance(LEASE_MS)

    assert ids_of(queue.claim(QUEUE, "other", 9)) == ["job_suspect"]


def test_after_one_loss_a_job_is_no_suspect(queue, clock):
    enqueue(queue, a_job("job_a"), a_job("job_b"))
    lose_first(queue, clock, times=1)

    claims = queue.claim(QUEUE, "w1", 9)

    assert [claim.must_run_alone for claim in claims] == [False, False]


def lose_first(queue, clock, times):
    """Let the worker of the job in front die this often."""
    for _ in range(times):
        claim_one(queue, "doomed")
        clock.advance(LEASE_MS)
