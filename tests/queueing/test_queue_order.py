from collections import Counter

from queueing.job import JobState, Priority
from tests.support.jobs import (
    QUEUE,
    a_job,
    claim_one,
    enqueue,
    finish,
    ids_of,
    state_of,
)

HOUR_MS = 3_600_000


def served(queue, count, tokens=None):
    """Claim and finish jobs one after the other; return their claims."""
    claims = []
    for _ in range(count):
        claim = claim_one(queue)
        finish(queue, claim, tokens=tokens or 1)
        claims.append(claim)
    return claims


def tenants_of(claims):
    return Counter(claim.tenant for claim in claims)


def test_the_higher_priority_goes_first(queue):
    enqueue(
        queue,
        a_job("job_bulk", priority=Priority.BULK),
        a_job("job_standard", priority=Priority.STANDARD),
        a_job("job_realtime", priority=Priority.REALTIME),
    )

    claims = queue.claim(QUEUE, "w1", 9)

    assert ids_of(claims) == ["job_realtime", "job_standard", "job_bulk"]


def test_within_a_priority_the_earlier_due_time_goes_first(queue, clock):
    enqueue(queue, a_job("job_early"))
    clock.advance(1_000)
    enqueue(queue, a_job("job_late"), a_job("job_pressed", deadline_s=10.0))

    assert ids_of(queue.claim(QUEUE, "w1", 9)) == ["job_pressed", "job_early", "job_late"]


def test_tenants_of_equal_needs_take_turns(queue):
    enqueue(queue, *[a_job(tenant="ann", cost=10) for _ in range(20)])
    enqueue(queue, *[a_job(tenant="bob", cost=10) for _ in range(20)])

    assert tenants_of(queue.claim(QUEUE, "w1", 20)) == {"ann": 10, "bob": 10}


def test_turns_are_counted_in_tokens_not_in_jobs(queue):
    enqueue(queue, *[a_job(tenant="long", cost=90) for _ in range(20)])
    enqueue(queue, *[a_job(tenant="short", cost=10) for _ in range(60)])

    assert tenants_of(queue.claim(QUEUE, "w1", 20)) == {"long": 2, "short": 18}


def test_a_tenant_of_double_weight_is_served_twice_as_much(queue):
    enqueue(queue, *[a_job(tenant="paid", cost=10, weight=2.0) for _ in range(40)])
    enqueue(queue, *[a_job(tenant="free", cost=10) for _ in range(40)])

    assert tenants_of(queue.claim(QUEUE, "w1", 30)) == {"paid": 20, "free": 10}


def test_what_a_job_really_took_is_what_counts(queue):
    enqueue(queue, *[a_job(tenant="boasts", cost=100) for _ in range(40)])
    enqueue(queue, *[a_job(tenant="frank", cost=10) for _ in range(40)])

    claims = served(queue, 40, tokens=10)

    counts = tenants_of(claims)
    assert abs(counts["boasts"] - counts["frank"]) <= 2


def test_a_newcomer_starts_level_and_owes_nothing(queue):
    enqueue(queue, *[a_job(tenant="old", cost=10) for _ in range(100)])
    queue.claim(QUEUE, "w1", 50)

    enqueue(queue, *[a_job(tenant="new", cost=10) for _ in range(100)])

    counts = tenants_of(queue.claim(QUEUE, "w1", 20))
    assert abs(counts["old"] - counts["new"]) <= 2


def test_a_tenant_cannot_shed_what_it_owes_by_leaving_for_a_moment(queue):
    enqueue(queue, *[a_job(tenant="patient", cost=10) for _ in range(100)])
    enqueue(queue, a_job(tenant="nimble", cost=100))
    turns = []

    for _ in range(40):
        claim = claim_one(queue)
        finish(queue, claim, tokens=100 if claim.tenant == "nimble" else 10)
        turns.append(claim)
        if claim.tenant == "nimble":
            enqueue(queue, a_job(tenant="nimble", cost=100))

    counts = tenants_of(turns)
    assert counts["nimble"] <= 5
    assert counts["patient"] >= 35


def test_ten_jobs_beside_a_flood_wait_only_their_share(queue):
    enqueue(queue, *[a_job(tenant="flood", cost=10) for _ in range(300)])
    enqueue(queue, *[a_job(tenant="small", cost=10) for _ in range(10)])

    claims = queue.claim(QUEUE, "w1", 20)

    assert tenants_of(claims)["small"] == 10


def test_one_eighth_of_the_tokens_goes_to_the_most_overdue(queue, clock):
    enqueue(queue, *[a_job(priority=Priority.BULK, cost=10) for _ in range(100)])
    clock.advance(3 * HOUR_MS)
    enqueue(queue, *[a_job(priority=Priority.REALTIME, cost=10) for _ in range(800)])

    claims = queue.claim(QUEUE, "w1", 400)

    counts = Counter(claim.priority for claim in claims)
    assert counts[Priority.BULK] == 50
    assert counts[Priority.REALTIME] == 350


def test_an_overdue_job_that_is_large_waits_until_the_share_has_paid_for_it(queue, clock):
    enqueue(queue, a_job("job_large", priority=Priority.BULK, cost=1_000))
    clock.advance(2 * HOUR_MS)
    enqueue(queue, *[a_job(priority=Priority.REALTIME, cost=100) for _ in range(80)])

    before = queue.claim(QUEUE, "w1", 70)
    after = queue.claim(QUEUE, "w1", 1)

    assert "job_large" not in ids_of(before)
    assert ids_of(after) == ["job_large"]


def test_a_bulk_backlog_three_times_its_patience_does_not_push_realtime_aside(queue, clock):
    enqueue(queue, *[a_job(priority=Priority.BULK, cost=10) for _ in range(200)])
    clock.advance(3 * HOUR_MS)
    enqueue(queue, a_job("job_now", priority=Priority.REALTIME, cost=10))

    assert "job_now" in ids_of(queue.claim(QUEUE, "w1", 2))


def test_nothing_overdue_earns_no_credit(queue, clock):
    enqueue(queue, *[a_job(priority=Priority.REALTIME, cost=10) for _ in range(100)])
    queue.claim(QUEUE, "w1", 90)
    enqueue(queue, a_job("job_bulk", priority=Priority.BULK, cost=10))
    clock.advance(2 * HOUR_MS)
    enqueue(queue, *[a_job(priority=Priority.REALTIME, cost=10) for _ in range(10)])

    assert "job_bulk" not in ids_of(queue.claim(QUEUE, "w1", 6))


def test_a_claim_of_urgent_work_only_spends_no_overdue_share(queue, clock):
    enqueue(queue, *[a_job(priority=Priority.BULK) for _ in range(10)])
    clock.advance(2 * HOUR_MS)
    enqueue(queue, *[a_job(priority=Priority.REALTIME) for _ in range(20)])

    claims = queue.claim(QUEUE, "w1", 15, at_least=Priority.REALTIME)

    assert {claim.priority for claim in claims} == {Priority.REALTIME}


def test_the_order_does_not_depend_on_who_claims(queue):
    enqueue(queue, *[a_job(f"job_{number}") for number in range(4)])

    claims = [claim_one(queue, f"w{number}") for number in range(4)]

    assert ids_of(claims) == ["job_0", "job_1", "job_2", "job_3"]


def test_a_job_with_the_deadline_already_over_is_never_run(queue):
    enqueue(queue, a_job("job_a", deadline_s=0.0))

    assert queue.claim(QUEUE, "w1", 1) == []
    assert state_of(queue, "job_a") is JobState.EXPIRED
