"""What the order amounts to over a long time: shares, and how long anybody can wait."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queueing.clock import ManualClock
from queueing.job import Priority
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from tests.support.jobs import QUEUE, a_job, enqueue, finish
from tests.support.load import amount

TOKENS_PER_S = 100


def jain(shares):
    """Return Jain's index of fairness: 1 when all shares are equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


@dataclass
class Server:
    """One server of tokens, that takes a job when it is free."""

    queue: JobQueue
    clock: ManualClock

    def serve_one(self):
        """Claim a job, let the time pass that it takes, and finish it; return it, if any."""
        claims = self.queue.claim(QUEUE, "w1", 1)
        for claim in claims:
            record_cost = int(claim.request)
            self.clock.advance(record_cost * 1000 // TOKENS_PER_S)
            finish(self.queue, claim, tokens=record_cost)
        return claims[0] if claims else None


def job_of(tokens, **changes):
    """Make a job whose request says what it takes."""
    return a_job(request=str(tokens), cost=tokens, **changes)


def test_two_tenants_under_saturation_get_equal_tokens(queue, clock):
    enqueue(queue, *[job_of(200, tenant="ann") for _ in range(100)])
    enqueue(queue, *[job_of(20, tenant="bob") for _ in range(600)])
    server = Server(queue, clock)
    tokens: Counter[str] = Counter()

    while tokens.total() < 10_000:
        claim = server.serve_one()
        tokens[claim.tenant] += int(claim.request)

    assert jain(tokens.values()) >= 0.95


def test_a_hundred_tenants_of_different_appetite_get_equal_tokens(queue):
    appetites = {f"tenant-{number:02}": 10 + 5 * (number % 7) for number in range(40)}
    for tenant, cost in appetites.items():
        enqueue(queue, *[job_of(cost, tenant=tenant) for _ in range(12)])
    tokens: Counter[str] = Counter()

    for claim in queue.claim(QUEUE, "w1", 240):
        tokens[claim.tenant] += int(claim.request)

    assert jain([tokens[tenant] for tenant in appetites]) >= 0.95


def test_a_bulk_backlog_beside_realtime_moves_at_its_share(queue, clock):
    enqueue(queue, *[job_of(100, priority=Priority.BULK) for _ in range(60)])
    clock.advance(3 * Priority.BULK.patience_ms)
    enqueue(queue, *[job_of(100, priority=Priority.REALTIME) for _ in range(400)])
    server = Server(queue, clock)

    served = Counter(server.serve_one().priority for _ in range(200))

    assert served[Priority.BULK] == 25
    assert served[Priority.REALTIME] == 175


@st.composite
def arrivals(draw):
    """Draw work that stays within what the overdue share can carry.

    Any pattern of realtime and standard work, however much; bulk work that all in all is less than
    an eighth of what is served until its patience is over.
    """
    urgent = st.tuples(st.sampled_from([Priority.REALTIME, Priority.STANDARD]), st.integers(1, 400))
    bulk = st.tuples(st.just(Priority.BULK), st.integers(1, 400))
    return draw(st.lists(urgent, min_size=30, max_size=60)), draw(st.lists(bulk, max_size=3))


@settings(
    max_examples=amount(quick=15, soak=300),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(work=arrivals())
def test_no_bulk_job_waits_beyond_its_patience_and_what_pays_for_it(redis_url, work):
    with connect(redis_url) as client:
        client.flushdb()
        clock = ManualClock()
        queue = JobQueue(client, QueueLimits(), clock=clock)
        urgent, bulk = work
        enqueue(queue, *[job_of(tokens, priority=priority) for priority, tokens in bulk])
        clock.advance(Priority.BULK.patience_ms + 1)
        enqueue(queue, *[job_of(tokens, priority=priority) for priority, tokens in urgent])
        overdue_at, server = clock.now_ms(), Server(queue, clock)

        waits = []
        while claim := server.serve_one():
            if claim.priority is Priority.BULK:
                waits.append(claim.claimed_ms - overdue_at)

        # Once overdue it waits until the share has paid for all overdue work up to it, seven
        # tokens of others for one, and for one more job of others.
        paid_ms = sum(tokens for _, tokens in bulk) * 8 * 1000 // TOKENS_PER_S
        largest_ms = max(tokens for _, tokens in urgent) * 1000 // TOKENS_PER_S
        assert all(wait <= paid_ms + (1 + len(bulk)) * largest_ms for wait in waits)
        assert len(waits) == len(bulk)
