"""JobQueue: the verbs over Redis, and the only writer of job state. One verb is one Lua script
(scripts/<verb>.lua).

Every verb is atomic and safe to repeat: a caller that lost the reply asks again. All of them raise
StoreUnavailable when Redis is down. Time is Redis TIME unless a test gives a clock.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import redis

from queueing import keys
from queueing.clock import Clock
from queueing.errors import StaleLease
from queueing.failpoints import Failpoint, Failpoints
from queueing.job import (
    Claim,
    Enqueued,
    Idempotency,
    Job,
    JobRecord,
    JobState,
    Lease,
    Outcome,
    Priority,
)
from queueing.script_format import (
    claim_of,
    enqueued,
    job_fields,
    outcome_parts,
    record_of,
)
from queueing.store import Script, translated_errors

# One script call keeps everybody else waiting: 256 jobs take a few milliseconds.
_MAX_JOBS_A_CALL = 256


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The queue's bounds and lifetimes, in milliseconds."""

    lease_ms: int = 15_000
    max_losses: int = 3
    max_queued_jobs: int = 100_000
    max_queued_bytes: int = 2**30
    target_wait_ms: int = 0
    result_ttl_ms: int = 86_400_000
    record_ttl_ms: int = 604_800_000
    idempotency_ttl_ms: int = 86_400_000

    def as_json(self) -> str:
        """Write them as the scripts read them."""
        patience = {priority.value: priority.patience_ms for priority in Priority}
        return json.dumps({**asdict(self), "patience_ms": patience})


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How much waits in one queue: by priority, what has to wait until later, what is leased."""

    ready: dict[Priority, int]
    oldest_age_s: dict[Priority, float]
    later: int
    leased: int


@dataclass(frozen=True, slots=True)
class QueuePressure:
    """How full a queue is, 0 to 1, of jobs or of bytes, and what it does about that.

    `level` is 0 for nothing, 1 while it warns (from 60% on), 2 while it sheds bulk (80%), 3 while
    it sheds standard too (95%), 4 while it is full. A level is left 5% below where it is entered.
    """

    fill: float
    level: int


@dataclass(frozen=True, slots=True)
class ClaimCall:
    """A worker's side of one claim: how many claims it holds, and an id that a repeat of the call
    has too.

    A repeat of the last call is answered with the same leases, so that a reply lost on the way
    loses no job.
    """

    held: int = 0
    id: str = ""


class JobQueue:
    """The queues of one installation.

    Thread-safe: it holds nothing but the client and the limits.
    """

    def __init__(
        self,
        client: "redis.Redis",
        limits: QueueLimits | None = None,
        *,
        prefix: str = "{pm}:",
        clock: Clock | None = None,
        failpoints: Failpoints | None = None,
    ) -> None:
        self.failpoints = failpoints or Failpoints()
        self._client = client
        self._limits = limits or QueueLimits()
        self._prefix = prefix
        self._clock = clock
        self._limits_json = self._limits.as_json()
        self._enqueue = Script(client, "enqueue", prefix, allow_oom=False)
        self._claim = Script(client, "claim", prefix, allow_oom=True)
        self._renew = Script(client, "renew", prefix, allow_oom=True)
        self._release = Script(client, "release", prefix, allow_oom=True)
        self._finish = Script(client, "finish", prefix, allow_oom=True)
        self._cancel = Script(client, "cancel", prefix, allow_oom=True)
        self._erase = Script(client, "erase", prefix, allow_oom=True)
        self._expire = Script(client, "expire", prefix, allow_oom=True)
        self._reap = Script(client, "reap", prefix, allow_oom=True)
        self._pressure = Script(client, "pressure", prefix, allow_oom=True)

    def enqueue(self, job: Job, idempotency: Idempotency | None = None) -> Enqueued:
        """Accept a job, or return the one that already stands for the request.

        Raises QueueFull, IdempotencyConflict, and StaleLease for a batch line whose tick was taken
        over.
        """
        fields = job_fields(job)
        if idempotency is not None:
            fields |= keys.idempotency_fields(job.tenant, idempotency)
        (answer,) = self._enqueue_all([job], [fields])
        self.failpoints.reach(Failpoint.ENQUEUED)
        return answer

    def enqueue_many(self, jobs: Sequence[Job]) -> list[Enqueued]:
        """Accept several jobs, up to 256 in one call; the errors are those of enqueue, from the
        first job that has one.

        Jobs before and after that one may have been accepted: repeat the call with the same ids.
        """
        answers: list[Enqueued] = []
        for first in range(0, len(jobs), _MAX_JOBS_A_CALL):
            some = jobs[first : first + _MAX_JOBS_A_CALL]
            answers += self._enqueue_all(some, [job_fields(job) for job in some])
        return answers

    def claim(
        self,
        queue: str,
        worker: str,
        limit: int,
        *,
        at_least: Priority = Priority.BULK,
        call: ClaimCall = ClaimCall(),
    ) -> list[Claim]:
        """Lease up to `limit` jobs of `queue` to `worker`, most urgent first, none less urgent than
        `at_least`.

        Takes back what outlived its lease and ends what is late first, a bounded number a call.
        """
        args = (queue, worker, limit, at_least.level, call.held, call.id)
        now, *replies = self._claim(*self._head(), *args) or [""]
        return [
            claim_of(queue, now, words, request)
            for words, request in zip(replies[::2], replies[1::2], strict=True)
        ]

    def renew(self, leases: Iterable[Lease]) -> set[str]:
        """Extend leases; return the ids of the jobs that are no longer held by their lease."""
        lost: set[str] = set()
        by_queue: dict[str, list[str]] = {}
        for lease in leases:
            by_queue.setdefault(lease.queue, []).extend((lease.job_id, str(lease.fence)))
        for queue, pairs in by_queue.items():
            lost.update(self._renew(*self._head(), queue, *pairs))
        return lost

    def release(self, lease: Lease, *, delay_s: float = 0.0, request: str | None = None) -> bool:
        """Hand a job back, to be claimed again after `delay_s`; counts no loss. False when the
        lease was not held.

        `request` replaces what the next worker reads (the progress of a delivery).
        """
        args = (lease.job_id, lease.fence, round(delay_s * 1000), request or "")
        return bool(self._release(*self._head(), *args))

    def finish(self, outcome: Outcome) -> JobState:
        """End a leased job with its result; return the state it ended in.

        A completed job whose deadline has passed ends expired. Raises StaleLease when somebody
        newer holds it.
        """
        (state,) = self.finish_many([outcome])
        if state is None:
            raise StaleLease(outcome.lease.job_id)
        return state

    def finish_many(self, outcomes: Sequence[Outcome]) -> list[JobState | None]:
        """End several leased jobs in one round trip; return the states they ended in, None for a
        stale lease.
        """
        parts = [part for outcome in outcomes for part in outcome_parts(outcome)]
        replies = self._finish(*self._head(), *parts)
        return [None if reply == "stale" else JobState(reply) for reply in replies]

    def cancel(self, job_id: str, tenant: str) -> JobState | None:
        """End a job that has not ended; return the state it is in now, None when there is no such
        job.
        """
        reply = self._cancel(*self._head(), job_id, tenant)
        return JobState(reply) if reply else None

    def erase(self, job_id: str, tenant: str) -> bool:
        """Delete a job's record and texts, cancelling it first when it is live.

        False when there is no such job.
        """
        return bool(self._erase(*self._head(), job_id, tenant))

    def expire(self, queue: str, limit: int = 256) -> int:
        """End queued jobs whose deadline has passed; return how many."""
        return int(self._expire(*self._head(), queue, limit))

    def reap(self, queue: str, limit: int = 256) -> int:
        """Take back jobs whose lease ran out; return how many."""
        return int(self._reap(*self._head(), queue, limit))

    def pressure(self, queue: str) -> QueuePressure:
        """Return how full a queue is, by its limits here, and what it does about that."""
        fill, level = self._pressure(*self._head(), queue)
        return QueuePressure(float(fill), int(level))

    def get(self, job_id: str, tenant: str) -> JobRecord | None:
        """Return what is known of a job; None for an unknown id and for another tenant's."""
        return self.get_many([job_id], tenant)[0]

    def get_many(self, job_ids: Sequence[str], tenant: str) -> list[JobRecord | None]:
        """Return what is known of several jobs, each as `get` does."""
        with translated_errors():
            # No transaction: a full Redis 7 refuses even reads in one. The record comes first, so a
            # job that ends between the two is told as it was before.
            pipeline = self._client.pipeline(transaction=False)
            for job_id in job_ids:
                pipeline.hgetall(keys.JOB.of(self._prefix, id=job_id))
                pipeline.get(keys.RESULT.of(self._prefix, id=job_id))
            found = pipeline.execute()
        return [
            record_of(job_id, fields, result) if fields.get("tenant") == tenant else None
            for job_id, fields, result in zip(job_ids, found[::2], found[1::2], strict=True)
        ]

    def request(self, job_id: str) -> str | None:
        """Return the payload its worker reads; None once it has expired."""
        with translated_errors():
            return cast("str | None", self._client.get(keys.REQUEST.of(self._prefix, id=job_id)))

    def queues(self) -> list[str]:
        """Return the names of all queues that ever held a job."""
        with translated_errors():
            names = cast("set[str]", self._client.smembers(keys.QUEUES.of(self._prefix)))
        return sorted(names)

    def depth(self, queue: str) -> QueueDepth:
        """Return how much waits in a queue and how old the oldest of each priority is."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.time()
            pipeline.zcard(keys.LATER.of(self._prefix, queue=queue))
            pipeline.zcard(keys.LEASES.of(self._prefix, queue=queue))
            for priority in Priority:
                ready = keys.READY.of(self._prefix, queue=queue, priority=priority.value)
                pipeline.zcard(ready)
                pipeline.zrange(ready, 0, 0, withscores=True)
            (seconds, microseconds), later, leased, *rest = pipeline.execute()
            heads = dict(zip(Priority, rest[1::2], strict=True))
            for head in heads.values():
                pipeline.hget(
                    keys.JOB.of(self._prefix, id=head[0][0] if head else ""), "arrival_ms"
                )
            arrivals = dict(zip(Priority, pipeline.execute(), strict=True))
        now_ms = self._clock.now_ms() if self._clock else seconds * 1000 + microseconds // 1000
        counts = dict(zip(Priority, rest[0::2], strict=True))
        ages = {
            priority: max(0.0, (now_ms - int(arrival)) / 1000) if arrival else 0.0
            for priority, arrival in arrivals.items()
        }
        return QueueDepth(ready=counts, oldest_age_s=ages, later=later, leased=leased)

    def bells(
        self, queues: Sequence[str], worker: str, at_least: Priority | None = Priority.BULK
    ) -> list[str]:
        """Return the lists a worker blocks on: its inbox, then what rings when its queues get work
        it takes.

        `at_least` None is for a worker that takes nothing: it must not take a ring from those that
        do.
        """
        inbox = keys.INBOX.of(self._prefix, worker=worker)
        if at_least is None:
            return [inbox]
        if at_least is Priority.BULK:
            return [inbox, *(keys.BELL.of(self._prefix, queue=queue) for queue in queues)]
        urgent = [priority.value for priority in Priority if priority.level <= at_least.level]
        bells = (
            keys.URGENT_BELL.of(self._prefix, queue=queue, priority=priority)
            for queue in queues
            for priority in urgent
        )
        return [inbox, *bells]

    def wake(self, worker: str) -> None:
        """Make a worker that blocks on its inbox look again."""
        inbox = keys.INBOX.of(self._prefix, worker=worker)
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.rpush(inbox, "wake")
            pipeline.pexpire(inbox, 60_000)
            pipeline.execute()

    def totals(self, queue: str) -> dict[str, int]:
        """Return the queue's counters since it was made: submitted, claimed, lost, stale and one a
        terminal state.
        """
        with translated_errors():
            key = keys.TOTALS.of(self._prefix, queue=queue)
            fields = cast("dict[str, str]", self._client.hgetall(key))
        return {name: int(value) for name, value in fields.items()}

    def _head(self) -> tuple[str, str]:
        return (str(self._clock.now_ms()) if self._clock else "", self._limits_json)

    def _enqueue_all(self, jobs: Sequence[Job], fields: list[dict[str, Any]]) -> list[Enqueued]:
        requests = [job.request for job in jobs]
        replies = self._enqueue(*self._head(), json.dumps(fields), *requests)
        return [
            enqueued(job, outcome, job_id)
            for job, outcome, job_id in zip(jobs, replies[::2], replies[1::2], strict=True)
        ]
