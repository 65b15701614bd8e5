"""BatchStore: the verbs on batches over Redis. One verb is one script (scripts/batch_<verb>.lua).

Verbs of a tick carry its lease, and raise StaleLease once somebody newer holds it: whatever such a
tick did was void. All of them raise StoreUnavailable when Redis is down.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from queueing import keys
from queueing.batch import (
    Batch,
    BatchStatus,
    NewBatch,
    Progress,
    decode_progress,
    encode_progress,
)
from queueing.clock import Clock
from queueing.errors import (
    FailureCode,
    IdempotencyConflict,
    QueueFull,
    RequestError,
    StaleLease,
)
from queueing.files import MONTH_S, FileLabel, FilePurpose, PlacedFile, record_of
from queueing.job import BATCH_QUEUE, Idempotency, JobState, Lease
from queueing.pages import Page, PageQuery, read_page
from queueing.queue import QueueLimits
from queueing.store import Script, translated_errors

_RECORD_TTL_MS = MONTH_S * 1000

_ENDS = {
    BatchStatus.COMPLETED: ("", ""),
    BatchStatus.EXPIRED: (FailureCode.DEADLINE_EXCEEDED, "the batch's window was over"),
    BatchStatus.FAILED: (FailureCode.INVALID_REQUEST, "the batch's input file can't be used"),
}


@dataclass(frozen=True, slots=True)
class EndedLine:
    """A line whose job ended. `member` is how Redis keeps it."""

    job_id: str
    line: int
    custom_id: str
    state: JobState
    member: str


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What a batch leaves; None where there would be no lines."""

    output: PlacedFile | None = None
    error: PlacedFile | None = None


class BatchStore:
    """The batches of one installation. Thread-safe: it holds nothing but the client and limits."""

    def __init__(
        self,
        client: "redis.Redis",
        limits: QueueLimits | None = None,
        *,
        prefix: str = "{pm}:",
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._limits_json = (limits or QueueLimits()).as_json()
        self._create = Script(client, "batch_create", prefix, allow_oom=False)
        self._cancel = Script(client, "batch_cancel", prefix, allow_oom=True)
        self._commit = Script(client, "batch_commit", prefix, allow_oom=True)
        self._rest = Script(client, "batch_rest", prefix, allow_oom=True)
        self._finish = Script(client, "batch_finish", prefix, allow_oom=True)

    def create(self, batch: NewBatch, idempotency: Idempotency | None = None) -> str:
        """Accept a batch and queue its tick; return the id that stands for the request.

        Raises RequestError for an input file that is not there or not for batches, QueueFull, and
        IdempotencyConflict.
        """
        progress = encode_progress(Progress())
        outcome, batch_id = self._create(
            *self._head(), json.dumps(_creation(batch, idempotency)), progress
        )
        match outcome:
            case "conflict":
                raise IdempotencyConflict
            case "full":
                raise QueueFull(BATCH_QUEUE, retry_after_s=30)
            case "no_file":
                raise RequestError(FailureCode.NOT_FOUND, "no such file", "input_file_id")
            case "wrong_purpose":
                message = "the file's purpose must be batch"
                raise RequestError(FailureCode.INVALID_REQUEST, message, "input_file_id")
        return str(batch_id)

    def cancel(self, batch_id: str, tenant: str) -> BatchStatus | None:
        """Ask for a batch's end; return its status now, None when there is no such batch."""
        status = self._cancel(*self._head(), batch_id, tenant)
        return BatchStatus(status) if status else None

    def get(self, batch_id: str, tenant: str) -> Batch | None:
        """Return what is known of a batch; None for an unknown id and for another tenant's."""
        batch = self.read(batch_id)
        return batch if batch is not None and batch.tenant == tenant else None

    def page(self, tenant: str, query: PageQuery) -> Page[Batch]:
        """Return a page of a tenant's batches."""
        index = keys.BATCHES.of(self._prefix, tenant=tenant)
        return read_page(self._client, index, query, self._fetch)

    def read(self, batch_id: str) -> Batch | None:
        """Return what is known of a batch, whoever owns it; None when there is none."""
        (batch,) = self._fetch([batch_id])
        return batch

    def commit(
        self,
        lease: Lease,
        progress: Progress,
        *,
        change: tuple[BatchStatus, BatchStatus] | None = None,
        harvested: Sequence[EndedLine] = (),
    ) -> BatchStatus:
        """Record what a tick did, in one step, and return the batch's status after it.

        `change` is the status to leave and the one to enter; it does not happen when the batch was
        cancelled meanwhile. The jobs of harvested lines are deleted: they are in a segment now.
        """
        leave, enter = change or ("", "")
        members = (line.member for line in harvested)
        status = self._commit(
            *self._head(),
            lease.job_id,
            lease.fence,
            encode_progress(progress),
            leave,
            enter,
            *members,
        )
        return BatchStatus(_held(lease, status))

    def rest(self, lease: Lease, seen: Batch, *, delay_s: float) -> None:
        """Let the batch's next tick come after a delay, or at once if it changed since `seen`."""
        line = seen.progress.cursor.line
        args = (lease.job_id, lease.fence, round(delay_s * 1000), seen.status.value, line)
        _held(lease, self._rest(*self._head(), *args) or "stale")

    def finish(
        self, lease: Lease, batch: Batch, end: BatchStatus, files: BatchFiles
    ) -> BatchStatus:
        """End a batch: make its files known and its status final. Return that: end or cancelled."""
        code, message = _ENDS[end]
        status = self._finish(
            *self._head(),
            lease.job_id,
            lease.fence,
            encode_progress(batch.progress),
            end.value,
            code,
            message,
            _RECORD_TTL_MS,
            json.dumps(_records(batch, files)),
        )
        return BatchStatus(_held(lease, status))

    def live(self, batch_id: str) -> dict[str, int]:
        """Return the jobs of lines that are queued or running, with their line numbers."""
        live = keys.BATCH_LIVE.of(self._prefix, id=batch_id)
        with translated_errors():
            pairs: Any = self._client.zrange(live, 0, -1, withscores=True)
        return {job_id: int(line) for job_id, line in pairs}

    def ended(self, batch_id: str, up_to_line: int, limit: int) -> list[EndedLine]:
        """Return ended lines that are in no segment yet, in line order."""
        ended = keys.BATCH_ENDED.of(self._prefix, id=batch_id)
        with translated_errors():
            members: Any = self._client.zrangebyscore(ended, "-inf", up_to_line, start=0, num=limit)
        return [_ended(member) for member in members]

    def sent_after(self, batch_id: str, line: int) -> set[int]:
        """Return the lines beyond `line` that a tick sent before it died."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            for family in (keys.BATCH_LIVE, keys.BATCH_ENDED):
                key = family.of(self._prefix, id=batch_id)
                pipeline.zrangebyscore(key, f"({line}", "+inf", withscores=True)
            live, ended = pipeline.execute()
        return {int(number) for _, number in live + ended}

    def _head(self) -> tuple[str, str]:
        return (str(self._clock.now_ms()) if self._clock else "", self._limits_json)

    def _fetch(self, ids: Sequence[str]) -> list[Batch | None]:
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.time()
            for batch_id in ids:
                pipeline.hgetall(keys.BATCH.of(self._prefix, id=batch_id))
            (seconds, microseconds), *records = pipeline.execute()
        now_s = seconds + microseconds / 1e6
        if self._clock is not None:
            now_s = self._clock.now_ms() / 1000
        return [
            _batch(batch_id, fields, now_s) if fields else None
            for batch_id, fields in zip(ids, records, strict=True)
        ]


def _held(lease: Lease, reply: Any) -> Any:  # a script's reply
    if reply == "stale":
        raise StaleLease(lease.job_id)
    return reply


def _creation(batch: NewBatch, idempotency: Idempotency | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": batch.id,
        "tenant": batch.tenant,
        "input_file": batch.input_file,
        "endpoint": batch.endpoint,
        "completion_window": batch.completion_window,
        "window_ms": batch.window_s * 1000,
        "window": batch.window,
        "record_ttl_ms": _RECORD_TTL_MS,
    }
    if batch.metadata is not None:
        fields["metadata"] = json.dumps(batch.metadata)
    if batch.output_ttl_s is not None:
        fields["output_ttl_ms"] = batch.output_ttl_s * 1000
    if idempotency is not None:
        fields |= keys.idempotency_fields(batch.tenant, idempotency)
    return fields


def _records(batch: Batch, files: BatchFiles) -> dict[str, Any]:
    ttl_s = batch.output_ttl_s or MONTH_S
    roles = {"output": files.output, "error": files.error}
    return {
        f"{role}_file": record_of(
            placed,
            FileLabel(f"{batch.id}_{role}.jsonl", FilePurpose.BATCH_OUTPUT, ttl_s),
        )
        for role, placed in roles.items()
        if placed is not None
    }


def _ended(member: str) -> EndedLine:
    fields = json.loads(member)
    return EndedLine(
        job_id=fields["job_id"],
        line=int(fields["line"]),
        custom_id=fields["custom_id"],
        state=JobState(fields["state"]),
        member=member,
    )


def _batch(batch_id: str, fields: dict[str, str], now_s: float) -> Batch:
    return Batch(
        id=batch_id,
        tenant=fields["tenant"],
        status=BatchStatus(fields["status"]),
        endpoint=fields["endpoint"],
        input_file=fields["input_file"],
        completion_window=fields["completion_window"],
        window=int(fields["window"]),
        metadata=json.loads(fields["metadata"]) if "metadata" in fields else None,
        output_ttl_s=int(fields["output_ttl_ms"]) // 1000 if "output_ttl_ms" in fields else None,
        output_file=fields.get("output_file"),
        error_file=fields.get("error_file"),
        created_s=int(fields["created_ms"]) / 1000,
        expires_s=int(fields["expires_ms"]) / 1000,
        now_s=now_s,
        reached_s={
            status: int(fields[f"{status.value}_ms"]) / 1000
            for status in BatchStatus
            if f"{status.value}_ms" in fields
        },
        progress=decode_progress(fields["progress"]),
    )
