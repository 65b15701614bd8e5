import pytest

from queueing.job import JobKind, JobState, Priority
from queueing.queue import ClaimCall
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


def test_a_claim_hands_out_the_request_and_marks_the_job_running(queue):
    enqueue(queue, a_job("job_a", request="the payload"))

    claim = claim_one(queue)

    assert claim.request == "the payload"
    assert state_of(queue, "job_a") is JobState.RUNNING


def test_a_claim_says_of_which_kind_the_job_is(queue):
    enqueue(queue, a_job("job_a", kind=JobKind.EMBED), a_job("job_b"))

    claims = queue.claim(QUEUE, "w1", 2)

    assert [claim.kind for claim in claims] == [JobKind.EMBED, JobKind.GENERATE]


def test_a_claimed_job_is_not_claimed_again(queue):
    enqueue(queue, a_job("job_a"))
    claim_one(queue, "w1")

    assert queue.claim(QUEUE, "w2", 1) == []


def test_two_claims_share_what_there_is(queue):
    enqueue(queue, a_job("job_a"), a_job("job_b"), a_job("job_c"))

    first = queue.claim(QUEUE, "w1", 2)
    second = queue.claim(QUEUE, "w2", 2)

    assert ids_of(first) == ["job_a", "job_b"]
    assert ids_of(second) == ["job_c"]


def test_a_claim_of_nothing_hands_out_nothing(queue):
    enqueue(queue, a_job())

    assert queue.claim(QUEUE, "w1", 0) == []


def test_the_fence_rises_at_every_claim(queue):
    enqueue(queue, a_job())
    first = claim_one(queue)
    queue.release(first.lease)

    second = claim_one(queue)

    assert second.lease.fence > first.lease.fence


def test_a_late_job_expires_at_claim_and_is_never_handed_out(queue, clock):
    enqueue(queue, a_job("job_late", deadline_s=5.0), a_job("job_fine"))
    clock.advance(5_001)

    claims = queue.claim(QUEUE, "w1", 9)

    assert ids_of(claims) == ["job_fine"]
    assert state_of(queue, "job_late") is JobState.EXPIRED


def test_however_many_are_late_none_is_handed_out(queue, clock):
    enqueue(queue, *[a_job(deadline_s=5.0) for _ in range(300)], a_job("job_fine"))
    clock.advance(5_001)

    claims = [claim for _ in range(5) for claim in queue.claim(QUEUE, "w1", 9)]

    assert ids_of(claims) == ["job_fine"]
    assert queue.totals(QUEUE)["expired"] == 300


def test_an_expired_job_says_where_it_was(queue, clock, client):
    enqueue(queue, a_job("job_late", deadline_s=5.0))
    clock.advance(5_001)
    queue.claim(QUEUE, "w1", 1)

    record = queue.get("job_late", TENANT)

    assert record.result.error.code == "deadline_exceeded"
    assert client.hget("{pm}:job:job_late", "stage") == "queued"


def test_a_claim_says_how_much_time_is_left(queue, clock):
    enqueue(queue, a_job(deadline_s=5.0))
    clock.advance(2_000)

    assert claim_one(queue).remaining_ms == 3_000


def test_a_claim_can_ask_for_urgent_work_only(queue):
    enqueue(queue, a_job("job_bulk", priority=Priority.BULK), a_job("job_standard"))

    claims = queue.claim(QUEUE, "w1", 9, at_least=Priority.STANDARD)

    assert ids_of(claims) == ["job_standard"]


def test_a_repeated_claim_call_gets_the_same_leases(queue):
    enqueue(queue, a_job("job_a"), a_job("job_b"))
    first = queue.claim(QUEUE, "w1", 1, call=ClaimCall(id="7"))

    again = queue.claim(QUEUE, "w1", 1, call=ClaimCall(id="7"))

    assert again == first


def test_a_repeated_claim_call_leaves_out_what_ended_meanwhile(queue):
    enqueue(queue, a_job("job_a"), a_job("job_b"))
    first, _second = queue.claim(QUEUE, "w1", 2, call=ClaimCall(id="7"))
    finish(queue, first)

    again = queue.claim(QUEUE, "w1", 2, call=ClaimCall(id="7"))

    assert ids_of(again) == ["job_b"]


def test_the_next_call_gets_the_next_jobs(queue):
    enqueue(queue, a_job("job_a"), a_job("job_b"))
    queue.claim(QUEUE, "w1", 1, call=ClaimCall(id="7"))

    assert ids_of(queue.claim(QUEUE, "w1", 1, call=ClaimCall(id="8"))) == ["job_b"]


def test_another_workers_call_of_the_same_name_is_another_call(queue):
    enqueue(queue, a_job("job_a"), a_job("job_b"))
    queue.claim(QUEUE, "w1", 1, call=ClaimCall(id="7"))

    assert ids_of(queue.claim(QUEUE, "w2", 1, call=ClaimCall(id="7"))) == ["job_b"]


@pytest.mark.parametrize("place", ["ready", "overdue", "late", "later", "leased"])
def test_an_id_without_a_record_is_passed_over_wherever_it_stands(queue, clock, client, place):
    waits_s = 5.0 if place == "later" else 0.0
    deadline_s = 5.0 if place == "late" else None
    enqueue(queue, a_job("job_ghost", not_before_s=waits_s, deadline_s=deadline_s))
    if place == "leased":
        claim_one(queue, "w0")
    client.delete("{pm}:job:job_ghost")
    enqueue(queue, a_job("job_fine"))
    clock.advance(0 if place == "ready" else 10_000_000)

    claims = queue.claim(QUEUE, "w1", 9)

    assert ids_of(claims) == ["job_fine"]
    assert queue.claim(QUEUE, "w1", 9) == []
    lines = [key for key in client.scan_iter(match="*") if client.type(key) == "zset"]
    standing = [line for line in lines if client.zscore(line, "job_ghost") is not None]
    assert [line for line in standing if ":jobs:" not in line] == []
    assert not client.exists("{pm}:job:job_ghost")
