"""Dead jobs: those that were lost with their workers too often, as the operator sees them.

What has ended stays ended: to try a dead job again is to queue a copy of it under a new id, without
its deadline, once. Verbs raise StoreUnavailable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from queueing import keys
from queueing.errors import FailureCode, RequestError
from queueing.job import Enqueued, Idempotency, Job, JobKind, JobState, Priority, new_id
from queueing.pages import Page, PageQuery, read_page
from queueing.queue import JobQueue
from queueing.store import translated_errors

_RETRY = "dead-retry"


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A dead job without its texts. Instants are seconds of the store's clock."""

    id: str
    tenant: str
    queue: str
    priority: Priority
    losses: int
    arrival_s: float
    finished_s: float


class DeadJobs:
    """The dead jobs of all queues and tenants. Thread-safe: it holds nothing but the client."""

    def __init__(self, client: "redis.Redis", queue: JobQueue, *, prefix: str = "{pm}:") -> None:
        self._client = client
        self._queue = queue
        self._prefix = prefix

    def page(self, query: PageQuery) -> Page[DeadJob]:
        """Return some of them, newest first; raises RequestError for an unknown cursor."""
        return read_page(self._client, keys.DEAD.of(self._prefix), query, self._fetch)

    def retry(self, job_id: str) -> Enqueued | None:
        """Queue a copy of a dead job; a repeat returns the same. None when there is no such job.

        Raises RequestError for a line of a batch, whose file is written already, and for a job
        whose prompt has expired; and what enqueue raises.
        """
        fields = self._fields(job_id)
        if fields.get("state") != JobState.DEAD:
            return None
        if "batch" in fields:
            message = "a batch has told of this line already; send it in a new batch"
            raise RequestError(FailureCode.CONFLICT, message)
        request = self._queue.request(job_id)
        if request is None:
            raise RequestError(FailureCode.CONFLICT, "the job's prompt has expired")
        return self._queue.enqueue(
            _copy_of(job_id, fields, request), Idempotency(_RETRY, job_id, job_id)
        )

    def drop(self, job_id: str) -> bool:
        """Erase a dead job; False when there is no such job."""
        fields = self._fields(job_id)
        if fields.get("state") != JobState.DEAD:
            return False
        return self._queue.erase(job_id, fields["tenant"])

    def _fields(self, job_id: str) -> dict[str, str]:
        with translated_errors():
            fields: Any = self._client.hgetall(keys.JOB.of(self._prefix, id=job_id))
        return dict(fields)

    def _fetch(self, job_ids: Sequence[str]) -> list[DeadJob | None]:
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for job_id in job_ids:
                pipeline.hgetall(keys.JOB.of(self._prefix, id=job_id))
            found = pipeline.execute()
        return [
            _dead_job_of(job_id, fields) if fields else None
            for job_id, fields in zip(job_ids, found, strict=True)
        ]


def _copy_of(job_id: str, fields: dict[str, str], request: str) -> Job:
    prefix = job_id[: -len(new_id(""))]
    return Job(
        id=new_id(prefix),
        queue=fields["queue"],
        request=request,
        kind=JobKind(fields.get("kind", JobKind.GENERATE)),
        tenant=fields["tenant"],
        priority=Priority(fields["priority"]),
        cost=int(fields["cost"]),
        weight=float(fields.get("weight", "1")),
        webhook_url=fields.get("webhook"),
        metadata=fields.get("metadata"),
    )


def _dead_job_of(job_id: str, fields: dict[str, str]) -> DeadJob:
    return DeadJob(
        id=job_id,
        tenant=fields["tenant"],
        queue=fields["queue"],
        priority=Priority(fields["priority"]),
        losses=int(fields["losses"]),
        arrival_s=int(fields["arrival_ms"]) / 1000,
        finished_s=int(fields["finished_ms"]) / 1000,
    )
