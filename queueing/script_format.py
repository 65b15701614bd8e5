"""What the scripts of JobQueue read and answer, and the record they keep: between text and records.

Each function stands beside one script, whose first lines say the same. Must not know Redis.
"""

import json
from collections.abc import Callable
from typing import Any

from queueing import wire
from queueing.errors import (
    FailureCode,
    IdempotencyConflict,
    QueueFull,
    QueueShed,
    RequestError,
    StaleLease,
)
from queueing.job import (
    GENERATE_TASK,
    Claim,
    Enqueued,
    Job,
    JobKind,
    JobRecord,
    JobState,
    Lease,
    Outcome,
    Priority,
    task_of_queue,
)

# Work that is shed first can wait longest.
_SHED_RETRY_S = {Priority.REALTIME: 5, Priority.STANDARD: 15, Priority.BULK: 60}


def job_fields(job: Job) -> dict[str, Any]:
    """Return a job as enqueue.lua reads it; what it does not say is plain."""
    fields: dict[str, Any] = {
        "id": job.id,
        "queue": job.queue,
        "priority": job.priority.value,
        "tenant": job.tenant,
        "cost": job.cost,
        "validate_ms": job.validate_ms,
    }
    if job.kind is not JobKind.GENERATE:
        fields["kind"] = job.kind.value
    if job.not_before_s:
        fields["not_before_ms"] = round(job.not_before_s * 1000)
    if job.weight != 1.0:
        fields["weight"] = job.weight
    if job.must_meet_deadline:
        fields["must_meet_deadline"] = True
    if job.is_silent:
        fields["silent"] = True
    if job.deadline_s is not None:
        fields["deadline_ms"] = round(job.deadline_s * 1000)
    told = {"max_losses": job.max_losses, "webhook": job.webhook_url, "metadata": job.metadata}
    fields |= {name: value for name, value in told.items() if value is not None}
    if job.batch is not None:
        fields["batch"] = job.batch.batch_id
        fields["batch_fence"] = str(job.batch.fence)
        fields["line"] = job.batch.line
        fields["custom_id"] = job.batch.custom_id
    return fields


def enqueued(job: Job, outcome: str, job_id: str) -> Enqueued:
    """Read what became of a job; raises what JobQueue.enqueue does."""
    if outcome in {"created", "exists"}:
        return Enqueued(job_id, created=outcome == "created")
    refusals: dict[str, Callable[[], Exception]] = {
        "conflict": IdempotencyConflict,
        "full": lambda: QueueFull(job.queue, retry_after_s=5),
        "shed": lambda: QueueShed(job.queue, retry_after_s=_SHED_RETRY_S[job.priority]),
        "infeasible": _infeasible,
        "stale": lambda: StaleLease(job_id),
    }
    raise refusals[outcome]()


def _infeasible() -> RequestError:
    return RequestError(
        FailureCode.DEADLINE_INFEASIBLE,
        "with the work that is queued already, the deadline can't be met",
        "deadline_s",
    )


def claim_of(queue: str, now: str, words: str, request: str) -> Claim:
    """Read one claim of a reply."""
    job_id, fence, priority, due, arrival, deadline, *rest = words.split(" ", 10)
    losses, attempts, alone, kind, tenant = rest
    return Claim(
        lease=Lease(job_id, queue, int(fence)),
        request=request,
        priority=Priority(priority),
        tenant=tenant,
        due_ms=int(due),
        arrival_ms=int(arrival),
        claimed_ms=int(now),
        remaining_ms=int(deadline) - int(now) if deadline != "-" else None,
        losses=int(losses),
        attempts=int(attempts),
        must_run_alone=alone == "1",
        kind=JobKind(kind) if kind != "-" else JobKind.GENERATE,
    )


def outcome_parts(outcome: Outcome) -> tuple[str, str, str]:
    """Return an outcome as finish.lua reads it."""
    lease, result = outcome.lease, outcome.result
    code = result.error.code.value if result.error else "-"
    is_counted = task_of_queue(lease.queue) == GENERATE_TASK
    tokens = result.usage.total_tokens if is_counted else "-"
    words = f"{lease.job_id} {lease.fence} {result.state} {code} {outcome.stage or '-'} {tokens}"
    stages = json.dumps(result.stages) if result.stages else ""
    return words, wire.encode_result(result), stages


def record_of(job_id: str, fields: dict[str, str], result: str | None) -> JobRecord:
    """Read a job's record and its result, as keys.py tells of both."""
    state = JobState(fields["state"])
    arrival_ms = int(fields["arrival_ms"])

    def seconds(name: str) -> float | None:
        return int(fields[name]) / 1000 if name in fields else None

    stages = {"validate_ms": float(fields["validate_ms"])} if "validate_ms" in fields else {}
    if "first_claim_ms" in fields:
        stages["queue_ms"] = float(int(fields["first_claim_ms"]) - arrival_ms)
    stages |= json.loads(fields.get("stages", "{}"))
    return JobRecord(
        id=job_id,
        queue=fields["queue"],
        tenant=fields["tenant"],
        state=state,
        priority=Priority(fields["priority"]),
        arrival_s=arrival_ms / 1000,
        deadline_s=seconds("deadline_ms"),
        started_s=seconds("first_claim_ms"),
        finished_s=seconds("finished_ms"),
        losses=int(fields["losses"]),
        attempts=int(fields["attempts"]),
        webhook_url=fields.get("webhook"),
        metadata=fields.get("metadata"),
        stages=stages,
        result=wire.decode_result(result) if result and state.is_terminal else None,
        result_expired=state.is_terminal and result is None,
    )
