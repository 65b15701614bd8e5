"""A simulation at a scale no machine here has: the real queue, made-up workers, an explicit clock.

`python -m ops.load.simulation [JOBS]`. Jobs arrive at the rate of ten million a day and are served
by a thousand workers of one slot each, which take what the real JobQueue gives them: none of its
rules is written a second time. The same jobs through a first-come-first-served queue are the
yardstick. Prints waits by priority, missed deadlines, fairness, and what the store's time per job
says about where one Redis ends.
"""

import heapq
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles

from ops.bench.queue_speed import server
from ops.load.traffic import Arrival, Load, arrivals
from queueing.clock import ManualClock
from queueing.job import (
    Claim,
    Job,
    JobResult,
    JobState,
    Outcome,
    Priority,
    Usage,
    generate_queue,
)
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect

NUM_WORKERS = 1_000
JOBS_PER_S = 10_000_000 / 86_400
TOKENS_PER_S = 50.0
SEED = 7
_QUEUE = generate_queue("simulated")
_START_MS = 1_700_000_000_000


@dataclass(slots=True)
class Observed:
    """What became of the jobs: seconds waited, by priority and by tenant, and who came too late."""

    waits_s: dict[Priority, list[float]] = field(default_factory=lambda: defaultdict(list))
    missed: dict[Priority, int] = field(default_factory=lambda: defaultdict(int))
    by_tenant_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def started(self, job: Arrival, at_s: float) -> None:
        """Note that a job began."""
        self.waits_s[job.priority].append(at_s - job.at_s)
        self.by_tenant_s[job.tenant].append(at_s - job.at_s)


class Simulation:
    """Workers that take jobs from the real queue and finish them when their time has come."""

    def __init__(self, queue: JobQueue, clock: ManualClock) -> None:
        self.observed = Observed()
        self._queue = queue
        self._clock = clock
        self._now_s = 0.0
        self._idle = NUM_WORKERS
        self._busy: list[tuple[float, int, Claim, Arrival]] = []
        self._num_begun = 0
        self._jobs: dict[str, Arrival] = {}

    def run(self, jobs: Sequence[Arrival]) -> None:
        """Let all jobs come, and end when the last one has."""
        for number, job in enumerate(jobs):
            self._let_workers_finish(until_s=job.at_s)
            self._advance(job.at_s)
            self._enqueue(f"job_{number:022d}", job)
            self._claim()
        self._let_workers_finish(until_s=float("inf"))

    def _enqueue(self, job_id: str, job: Arrival) -> None:
        self._jobs[job_id] = job
        self._queue.enqueue(
            Job(
                job_id,
                _QUEUE,
                "{}",
                tenant=job.tenant,
                priority=job.priority,
                cost=job.tokens,
                deadline_s=job.deadline_s,
            )
        )

    def _let_workers_finish(self, until_s: float) -> None:
        while self._busy and self._busy[0][0] <= until_s:
            ends_s, _, claim, job = heapq.heappop(self._busy)
            self._advance(ends_s)
            result = JobResult(JobState.COMPLETED, usage=Usage(0, job.tokens))
            if self._queue.finish(Outcome(claim.lease, result)) is JobState.EXPIRED:
                self.observed.missed[job.priority] += 1
            self._idle += 1
            self._claim()

    def _claim(self) -> None:
        """Give idle workers work; a job that is too late is ended by the queue and never comes."""
        if self._idle == 0:
            return
        for claim in self._queue.claim(_QUEUE, "simulated", min(self._idle, 16)):
            job = self._jobs.pop(claim.lease.job_id)
            self.observed.started(job, self._now_s)
            ends_s = self._now_s + job.tokens / TOKENS_PER_S
            self._num_begun += 1
            heapq.heappush(self._busy, (ends_s, self._num_begun, claim, job))
            self._idle -= 1

    def _advance(self, to_s: float) -> None:
        self._now_s = max(self._now_s, to_s)
        self._clock.advance(_START_MS + round(self._now_s * 1000) - self._clock.now_ms())

    def count_never_started(self) -> None:
        """Count what expired in the queue."""
        for job in self._jobs.values():
            self.observed.missed[job.priority] += 1


def first_come_first_served(jobs: Sequence[Arrival]) -> Observed:
    """Serve the same jobs in order of arrival; those that are late already are dropped unserved."""
    observed = Observed()
    free_at_s = [0.0] * NUM_WORKERS
    for job in jobs:
        begins_s = max(job.at_s, free_at_s[0])
        due_s = float("inf") if job.deadline_s is None else job.at_s + job.deadline_s
        if begins_s >= due_s:
            observed.missed[job.priority] += 1
            continue
        ends_s = begins_s + job.tokens / TOKENS_PER_S
        heapq.heapreplace(free_at_s, ends_s)
        observed.started(job, begins_s)
        observed.missed[job.priority] += ends_s > due_s
    return observed


def main() -> None:
    """Run both and print what they show."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    load = Load(JOBS_PER_S, mean_tokens=NUM_WORKERS * TOKENS_PER_S / JOBS_PER_S)
    jobs = list(arrivals(load, count, random.Random(SEED)))  # noqa: S311  chance, not secrets
    limits = QueueLimits(
        lease_ms=10**9,
        max_queued_jobs=10**7,
        max_queued_bytes=10**12,
        result_ttl_ms=500,
        record_ttl_ms=500,
    )
    clock = ManualClock(_START_MS)
    begun_s = time.monotonic()
    with server() as url, connect(url) as client:
        simulation = Simulation(JobQueue(client, limits, clock=clock), clock)
        simulation.run(jobs)
        simulation.count_never_started()
        script = client.info("commandstats")["cmdstat_evalsha"]
        peak_bytes = int(client.info("memory")["used_memory_peak"])
    elapsed_s = time.monotonic() - begun_s
    _say(f"{count:,} jobs, {jobs[-1].at_s:,.0f} simulated seconds, in {elapsed_s:.0f} s")
    _report("promptmill", simulation.observed, count)
    _report("first come, first served", first_come_first_served(jobs), count)
    _report_store(script, count, peak_bytes)


def _report(name: str, observed: Observed, count: int) -> None:
    _say(f"\n{name}: {sum(observed.missed.values()) / count:.2%} of the jobs came too late")
    _say("| priority | median wait, s | p95 | p99 | missed |\n| --- | ---: | ---: | ---: | ---: |")
    for priority in Priority:
        cuts = quantiles(observed.waits_s[priority], n=100)
        missed = observed.missed[priority]
        _say(f"| {priority} | {cuts[49]:.2f} | {cuts[94]:.2f} | {cuts[98]:.2f} | {missed:,} |")
    means_s = [fmean(waits) for _, waits in sorted(observed.by_tenant_s.items())]
    small_s = fmean(means_s[len(means_s) // 2 :])
    _say(
        f"mean wait: {means_s[0]:.2f} s for the largest tenant, {small_s:.2f} s for the small half"
    )


def _report_store(script: dict[str, float], count: int, peak_bytes: int) -> None:
    """Tell the store's time: what it allows is an upper bound, with nothing else to do for it."""
    us_per_job = script["usec"] / count
    _say(
        f"\nstore: {script['calls'] / count:.2f} scripts and {us_per_job:.0f} us of its time a job;"
        f" one Redis ends at about {1_000_000 / us_per_job:,.0f} jobs/s"
        f" ({86_400_000_000 / us_per_job / 1_000_000:,.0f} million a day);"
        f" peak {peak_bytes / 2**20:,.0f} MiB"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
