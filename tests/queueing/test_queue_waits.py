"""How long a job of any class can wait within stated bounds, and who comes too late beyond them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queueing.clock import ManualClock
from queueing.job import Claim, Priority
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from tests.support.jobs import QUEUE, a_job, finish
from tests.support.load import amount

TOKENS_PER_S = 100
TENANTS = ["ann", "bob", "cay"]


@dataclass(frozen=True, order=True)
class Arrival:
    """A job as it comes; `ms` is how long serving it takes."""

    at_ms: int
    ms: int
    priority: Priority = field(compare=False)
    tenant: str = field(compare=False, default="ann")

    @property
    def tokens(self):
        return self.ms * TOKENS_PER_S // 1_000


@dataclass
class Server:
    """Serves one job at a time, whichever the queue gives it."""

    queue: JobQueue
    clock: ManualClock
    claims: list[Claim] = field(default_factory=list)
    free_at_ms: int | None = None

    def serve(self, arrivals: Iterable[Arrival]) -> list[Claim]:
        """Let all of them come in their time; return their claims in the order of service."""
        self._start_ms = self.clock.now_ms()
        for arrival in sorted(arrivals):
            self._serve_until(arrival.at_ms)
            self._enqueue(arrival)
            if self.free_at_ms is None:
                self._claim()
        self._serve_until(None)
        return self.claims

    def _serve_until(self, ms):
        while self.free_at_ms is not None and (ms is None or self.free_at_ms <= ms):
            self._go_to(self.free_at_ms)
            finish(self.queue, self.claims[-1], tokens=int(self.claims[-1].request))
            self._claim()
        if ms is not None:
            self._go_to(ms)

    def _go_to(self, ms):
        self.clock.advance(self._start_ms + ms - self.clock.now_ms())

    def _enqueue(self, arrival):
        self.queue.enqueue(
            a_job(
                request=str(arrival.tokens),
                cost=arrival.tokens,
                priority=arrival.priority,
                tenant=arrival.tenant,
            )
        )

    def _claim(self):
        claims = self.queue.claim(QUEUE, "w1", 1)
        self.claims += claims
        now_ms = self.clock.now_ms() - self._start_ms
        self.free_at_ms = (
            now_ms + int(claims[0].request) * 1_000 // TOKENS_PER_S if claims else None
        )


def served(redis_url, arrivals):
    """Serve arrivals from an empty queue."""
    with connect(redis_url) as client:
        client.flushdb()
        clock = ManualClock()
        limits = QueueLimits(lease_ms=10**9)
        return Server(JobQueue(client, limits, clock=clock), clock).serve(arrivals)


@st.composite
def bursts(draw, priority, max_bursts):
    """Draw bursts of one class, its patience apart or more, each at most a quarter of what can be
    served in that.
    """
    patience_ms, at_ms = priority.patience_ms, draw(st.integers(0, 40_000))
    arrivals = []
    for _ in range(draw(st.integers(1, max_bursts))):
        num_jobs = draw(st.integers(1, 4))
        ms = draw(st.sampled_from([1.0, 1.0, 0.5, 0.1, 0.005])) * patience_ms / 4 / num_jobs
        ms -= ms % 10
        arrivals += [
            Arrival(at_ms, round(ms), priority, draw(st.sampled_from(TENANTS)))
            for _ in range(num_jobs)
        ]
        at_ms += patience_ms + draw(st.sampled_from([0, 0, 0, 7, 900, 20_000]))
    return arrivals


@settings(
    max_examples=amount(quick=20, soak=1_000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    realtime=bursts(Priority.REALTIME, 60),
    standard=bursts(Priority.STANDARD, 20),
    bulk=bursts(Priority.BULK, 2),
)
def test_within_the_bounds_no_job_of_any_class_waits_beyond_its_patience_and_one_job(
    redis_url, realtime, standard, bulk
):
    arrivals = [*realtime, *standard, *bulk]

    claims = served(redis_url, arrivals)

    longest_ms = max(arrival.ms for arrival in arrivals)
    assert len(claims) == len(arrivals)
    assert [claim for claim in claims if wait_of(claim) > patience_of(claim) + longest_ms] == []


def wait_of(claim):
    return claim.claimed_ms - claim.arrival_ms


def patience_of(claim):
    return claim.priority.patience_ms


def test_beyond_the_bounds_fewer_jobs_wait_too_long_than_first_come_first_served(
    redis_url, record_property
):
    # Twice what can be served, for two minutes: half of it bulk work.
    arrivals = [
        *(Arrival(at, 250, Priority.REALTIME) for at in range(0, 120_000, 500)),
        *(Arrival(at, 1_000, Priority.STANDARD) for at in range(0, 120_000, 2_000)),
        *(Arrival(at, 5_000, Priority.BULK) for at in range(0, 120_000, 5_000)),
    ]

    ours = too_late((claim.priority, wait_of(claim)) for claim in served(redis_url, arrivals))

    theirs = too_late(first_come_first_served(arrivals))
    record_property("came too late", (ours, theirs))
    assert ours[Priority.REALTIME] < theirs[Priority.REALTIME] / 4
    assert ours.total() < theirs.total() / 2


def too_late(waits: Iterable[tuple[Priority, int]]) -> Counter[Priority]:
    """Count the jobs of each class that waited longer than its patience and the longest job."""
    return Counter(priority for priority, ms in waits if ms > priority.patience_ms + 5_000)


def first_come_first_served(arrivals: Sequence[Arrival]) -> list[tuple[Priority, int]]:
    """Return how long each would have waited in one line."""
    line = sorted(arrivals)
    free_at_ms = accumulate(
        line, lambda free, arrival: max(free, arrival.at_ms) + arrival.ms, initial=0
    )
    return [
        (arrival.priority, max(0, free - arrival.at_ms))
        for arrival, free in zip(line, free_at_ms, strict=False)
    ]
