"""Jobs, results and workers as tests write them down: what a test does not name is plain."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

from queueing.job import Choice, Claim, Job, JobResult, JobState, Outcome, Usage, generate_queue
from queueing.queue import JobQueue

MODEL = "fake"
QUEUE = generate_queue(MODEL)
TENANT = "default"

_numbers = count(1)


def a_job(job_id: str | None = None, **changes: Any) -> Job:
    """Make a job; without an id it gets one nobody else has."""
    name = job_id or f"job_{next(_numbers):022d}"
    return replace(Job(name, QUEUE, request=f'{{"v":1,"of":"{name}"}}'), **changes)


def a_result(text: str = "done", tokens: int = 1, **changes: Any) -> JobResult:
    """Make the result of a job that completed."""
    result = JobResult(
        JobState.COMPLETED,
        choices=(Choice(0, text, "stop"),),
        usage=Usage(0, tokens),
        model=MODEL,
    )
    return replace(result, **changes)


def enqueue(queue: JobQueue, *jobs: Job) -> None:
    """Put jobs into the queue, in order."""
    for job in jobs:
        queue.enqueue(job)


def claim_one(queue: JobQueue, worker: str = "w1", **options: Any) -> Claim:
    """Claim exactly one job."""
    (claim,) = queue.claim(QUEUE, worker, 1, **options)
    return claim


def finish(queue: JobQueue, claim: Claim, tokens: int = 1) -> JobState:
    """Complete a claimed job."""
    return queue.finish(Outcome(claim.lease, a_result(tokens=tokens)))


def ids_of(claims: Iterable[Claim]) -> list[str]:
    """Return the jobs' ids in the order of the claims."""
    return [claim.lease.job_id for claim in claims]


def state_of(queue: JobQueue, job_id: str, tenant: str = TENANT) -> JobState:
    """Return the state of a job that exists."""
    record = queue.get(job_id, tenant)
    assert record is not None, f"there is no {job_id}"
    return record.state
