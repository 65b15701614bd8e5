"""Every verb in every order, against a model in memory and on a real server."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from queueing.clock import ManualClock
from queueing.errors import FailureCode
from queueing.job import Claim, Idempotency, JobResult, JobState, Lease, Outcome, Priority
from queueing.queue import ClaimCall, JobQueue, QueueLimits
from queueing.store import connect
from tests.support.audit import faults_in
from tests.support.jobs import QUEUE, a_job, a_result, ids_of
from tests.support.load import amount

LEASE_MS = 10_000
MAX_LOSSES = 3
IDS = [f"job_{number}" for number in range(12)]
TENANTS = ["ann", "bob"]
WORKERS = ["w1", "w2"]


@dataclass
class ModelJob:
    """What a job should be like."""

    tenant: str
    priority: Priority
    ready_ms: int
    deadline_ms: float
    state: JobState = JobState.QUEUED
    fence: int = 0
    losses: int = 0
    lease_until_ms: int = 0
    ended_by_fence: int | None = None

    @property
    def is_suspect(self) -> bool:
        return self.losses >= MAX_LOSSES - 1


@dataclass
class Model:
    """The queue as it should be; the rules of the state diagram and nothing else."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def reap(self, now_ms: int) -> int:
        lost = [
            job
            for job in self.jobs.values()
            if job.state is JobState.RUNNING and job.lease_until_ms <= now_ms
        ]
        for job in lost:
            job.losses += 1
            job.state = JobState.DEAD if job.losses >= MAX_LOSSES else JobState.QUEUED
            job.ready_ms = min(job.ready_ms, now_ms)
        return len(lost)

    def expire(self, now_ms: int) -> int:
        late = [
            job
            for job in self.jobs.values()
            if job.state is JobState.QUEUED and job.deadline_ms <= now_ms
        ]
        for job in late:
            job.state = JobState.EXPIRED
        return len(late)

    def claimable(self, now_ms: int, at_least: Priority) -> set[str]:
        return {
            job_id
            for job_id, job in self.jobs.items()
            if job.state is JobState.QUEUED
            and job.ready_ms <= now_ms
            and job.priority.level <= at_least.level
        }

    def holds(self, lease: Lease) -> bool:
        job = self.jobs.get(lease.job_id)
        return job is not None and job.state is JobState.RUNNING and job.fence == lease.fence


class QueueMachine(RuleBasedStateMachine):
    """Does the same to the queue and to the model, and compares what they say."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.client = connect(url)
        self.client.flushdb()
        self.clock = ManualClock()
        limits = QueueLimits(lease_ms=LEASE_MS, max_losses=MAX_LOSSES)
        self.queue = JobQueue(self.client, limits, clock=self.clock)
        self.model = Model()
        self.leases: list[Lease] = []
        self.calls = 0

    def teardown(self) -> None:
        self.client.close()

    @rule(
        job_id=st.sampled_from(IDS),
        tenant=st.sampled_from(TENANTS),
        priority=st.sampled_from(Priority),
        cost=st.integers(1, 500),
        deadline_s=st.none() | st.integers(0, 20),
        delay_s=st.sampled_from([0, 0, 0, 4]),
        key=st.none() | st.sampled_from(["k1", "k2"]),
    )
    def enqueue(self, job_id, tenant, priority, cost, deadline_s, delay_s, key):
        job = a_job(
            job_id,
            tenant=tenant,
            priority=priority,
            cost=cost,
            deadline_s=deadline_s,
            not_before_s=delay_s,
        )
        idempotency = Idempotency("jobs", key, "digest") if key else None
        stands_for = self.model.keys.get((tenant, key)) if key else None
        is_new = stands_for is None and job_id not in self.model.jobs

        answer = self.queue.enqueue(job, idempotency)

        assert answer.created is is_new
        assert answer.job_id == (stands_for or job_id)
        if is_new:
            now = self.clock.now_ms()
            self.model.jobs[job_id] = ModelJob(
                tenant,
                priority,
                ready_ms=now + delay_s * 1000,
                deadline_ms=float("inf") if deadline_s is None else now + deadline_s * 1000,
            )
            if key:
                self.model.keys[tenant, key] = job_id

    @rule(
        worker=st.sampled_from(WORKERS),
        limit=st.integers(0, 5),
        at_least=st.sampled_from(Priority),
        held=st.integers(0, 1),
    )
    def claim(self, worker, limit, at_least, held):
        now = self.clock.now_ms()
        self.model.reap(now)
        self.model.expire(now)
        claimable = self.model.claimable(now, at_least)
        self.calls += 1

        claims = self.queue.claim(
            QUEUE, worker, limit, at_least=at_least, call=ClaimCall(held, str(self.calls))
        )

        claimed = ids_of(claims)
        assert len(claimed) == len(set(claimed)) <= limit
        assert set(claimed) <= claimable
        suspects = {job_id for job_id in claimable if self.model.jobs[job_id].is_suspect}
        assert len(claimed) == min(limit, len(claimable)) or suspects
        if suspects & set(claimed):
            assert len(claimed) == 1
            assert held == 0
        for claim in claims:
            self._note(claim, now)

    def _note(self, claim: Claim, now: int) -> None:
        job = self.model.jobs[claim.lease.job_id]
        assert claim.lease.fence == job.fence + 1
        assert claim.losses == job.losses
        assert claim.must_run_alone is job.is_suspect
        job.fence += 1
        job.state = JobState.RUNNING
        job.lease_until_ms = now + LEASE_MS
        self.leases.append(claim.lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data):
        lease = data.draw(st.sampled_from(self.leases))
        is_held = self.model.holds(lease)

        lost = self.queue.renew([lease])

        assert lost == (set() if is_held else {lease.job_id})
        if is_held:
            self.model.jobs[lease.job_id].lease_until_ms = self.clock.now_ms() + LEASE_MS

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), delay_s=st.sampled_from([0, 3]))
    def release(self, data, delay_s):
        lease = data.draw(st.sampled_from(self.leases))
        is_held = self.model.holds(lease)

        assert self.queue.release(lease, delay_s=delay_s) is is_held

        if is_held:
            job = self.model.jobs[lease.job_id]
            job.state = JobState.QUEUED
            job.ready_ms = self.clock.now_ms() + delay_s * 1000

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        result=st.sampled_from(
            [
                a_result(tokens=7),
                JobResult.failure(JobState.FAILED, FailureCode.ENGINE_ERROR, "broken"),
            ]
        ),
    )
    def finish(self, data, result):
        lease = data.draw(st.sampled_from(self.leases))
        job = self.model.jobs[lease.job_id]
        if self.model.holds(lease):
            is_late = self.clock.now_ms() > job.deadline_ms
            is_void = is_late and result.state is JobState.COMPLETED
            job.state = JobState.EXPIRED if is_void else result.state
            job.ended_by_fence = lease.fence
        expected = job.state if job.ended_by_fence == lease.fence else None

        assert self.queue.finish_many([Outcome(lease, result)]) == [expected]

    @rule(job_id=st.sampled_from(IDS), tenant=st.sampled_from(TENANTS))
    def cancel(self, job_id, tenant):
        job = self.model.jobs.get(job_id)
        expected = None
        if job is not None and job.tenant == tenant:
            if not job.state.is_terminal:
                job.state = JobState.CANCELLED
            expected = job.state

        assert self.queue.cancel(job_id, tenant) is expected

    @rule(job_id=st.sampled_from(IDS), tenant=st.sampled_from(TENANTS))
    def erase(self, job_id, tenant):
        job = self.model.jobs.get(job_id)
        is_there = job is not None and job.tenant == tenant

        assert self.queue.erase(job_id, tenant) is is_there

        if is_there:
            del self.model.jobs[job_id]
            # An id is never given twice; here it is free again, and old leases mean nothing to it.
            self.leases = [lease for lease in self.leases if lease.job_id != job_id]

    @rule()
    def expire(self):
        expected = self.model.expire(self.clock.now_ms())

        assert self.queue.expire(QUEUE) == expected

    @rule()
    def reap(self):
        expected = self.model.reap(self.clock.now_ms())

        assert self.queue.reap(QUEUE) == expected

    @rule(ms=st.sampled_from([1, 900, 4_000, LEASE_MS]))
    def let_time_pass(self, ms):
        self.clock.advance(ms)

    @invariant()
    def every_job_is_in_the_state_it_should_be_in(self):
        for job_id in IDS:
            job = self.model.jobs.get(job_id)
            record = self.queue.get(job_id, job.tenant if job else TENANTS[0])
            assert (record.state if record else None) == (job.state if job else None), job_id

    @invariant()
    def the_store_is_in_order(self):
        assert faults_in(self.client) == []


@pytest.mark.fault("F33")
@pytest.mark.timeout(amount(quick=60, soak=1_800))
def test_the_queue_does_what_its_model_does(redis_url):
    run_state_machine_as_test(
        lambda: QueueMachine(redis_url),  # type: ignore[arg-type]  # called as the class would be
        settings=settings(
            max_examples=amount(quick=25, soak=500),
            stateful_step_count=amount(quick=25, soak=50),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
