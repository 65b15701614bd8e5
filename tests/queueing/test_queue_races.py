"""Two callers at once, on a real server; and a store whose clock jumps."""

import threading
from collections import Counter

import pytest

from queueing.job import Idempotency, JobState, Outcome
from queueing.queue import JobQueue, QueueLimits
from tests.queueing.conftest import LEASE_MS
from tests.support.audit import faults_in
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
from tests.support.load import amount

HOUR_MS = 3_600_000


def at_once(*works):
    """Run all at the same time, each in a thread, and return their answers in order."""
    barrier = threading.Barrier(len(works))
    answers = [None] * len(works)

    def run(index, work):
        barrier.wait()
        answers[index] = work()

    threads = [threading.Thread(target=run, args=(index, work)) for index, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.fault("F24")
def test_finish_and_cancel_agree_on_one_end(queue, client):
    num_races = amount(quick=150, soak=1_000)
    enqueue(queue, *[a_job(f"job_{number}") for number in range(num_races)])
    winners: Counter[JobState | None] = Counter()

    for claim in queue.claim(QUEUE, "w1", num_races):
        job_id = claim.lease.job_id
        (finished,), cancelled = at_once(
            lambda claim=claim: queue.finish_many([Outcome(claim.lease, a_result())]),
            lambda job_id=job_id: queue.cancel(job_id, TENANT),
        )
        assert cancelled is state_of(queue, job_id)
        assert finished is (JobState.COMPLETED if cancelled is JobState.COMPLETED else None)
        winners[cancelled] += 1

    assert sum(winners.values()) == num_races
    assert faults_in(client) == []


def test_two_claims_never_get_the_same_job(queue):
    enqueue(queue, *[a_job() for _ in range(200)])

    batches = at_once(
        *[
            lambda worker=worker: [
                job_id for _ in range(20) for job_id in ids_of(queue.claim(QUEUE, f"w{worker}", 5))
            ]
            for worker in range(4)
        ]
    )

    claimed = [job_id for batch in batches for job_id in batch]
    assert len(claimed) == len(set(claimed)) == 200


def test_one_key_sent_by_many_makes_one_job(queue):
    key = Idempotency("jobs", "once", "digest")

    answers = at_once(*[lambda: queue.enqueue(a_job(), key) for _ in range(8)])

    assert len({answer.job_id for answer in answers}) == 1
    assert [answer.created for answer in answers].count(True) == 1


def test_claim_and_cancel_leave_the_job_cancelled_or_running_then_cancelled(queue, client):
    enqueue(queue, *[a_job(f"job_{number}") for number in range(50)])

    for number in range(50):
        _claims, state = at_once(
            lambda: queue.claim(QUEUE, "w1", 1),
            lambda number=number: queue.cancel(f"job_{number}", TENANT),
        )
        assert state is JobState.CANCELLED

    assert faults_in(client) == []


def test_finish_and_reap_leave_one_result_or_one_loss(make_queue, client, clock):
    queue = make_queue(lease_ms=LEASE_MS)
    enqueue(queue, *[a_job(f"job_{number}") for number in range(50)])
    claims = queue.claim(QUEUE, "w1", 50)
    clock.advance(LEASE_MS)

    for claim in claims:
        (finished,), _reaped = at_once(
            lambda claim=claim: queue.finish_many([Outcome(claim.lease, a_result())]),
            lambda: queue.reap(QUEUE, limit=1),
        )
        expected = JobState.COMPLETED if finished else JobState.QUEUED
        assert state_of(queue, claim.lease.job_id) in {expected, JobState.COMPLETED}

    totals = queue.totals(QUEUE)
    assert totals.get("completed", 0) + totals.get("lost", 0) >= 50
    assert faults_in(client) == []


@pytest.mark.fault("F20")
def test_a_clock_that_jumps_ahead_reruns_jobs_and_loses_none(queue, clock, client):
    enqueue(queue, *[a_job() for _ in range(amount(quick=20, soak=100))])
    before = queue.claim(QUEUE, "w1", 10)
    clock.advance(HOUR_MS)

    while claims := queue.claim(QUEUE, "w2", 10):
        for claim in claims:
            finish(queue, claim)

    stale = queue.finish_many([Outcome(claim.lease, a_result()) for claim in before])
    assert stale == [None] * 10
    assert queue.totals(QUEUE)["completed"] == queue.totals(QUEUE)["submitted"]
    assert faults_in(client) == []


@pytest.mark.fault("F20")
def test_a_clock_that_jumps_back_delays_what_waits_and_loses_none(queue, clock, client):
    enqueue(queue, a_job("job_a"), a_job("job_b", deadline_s=60.0))
    claim = claim_one(queue)
    clock.advance(-HOUR_MS)

    assert finish(queue, claim) is JobState.COMPLETED
    assert ids_of(queue.claim(QUEUE, "w1", 9)) == ["job_b"]
    assert faults_in(client) == []


@pytest.mark.fault("F19")
def test_instants_are_those_of_the_store_whatever_the_hosts_clock_says(client, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    queue = JobQueue(client, QueueLimits())
    store_s, _ = client.time()

    enqueue(queue, a_job("job_a", deadline_s=60.0))

    claim = claim_one(queue)
    assert abs(claim.arrival_ms / 1000 - int(store_s)) < 5
    assert claim.remaining_ms is not None
    assert claim.remaining_ms > 50_000
