"""BatchLines: the lines of an input file on their way to jobs.

Owns how a line that keeps the format becomes a job, or a line of the error file that says why not,
and what it means that the input cannot be read any more. Must not know what became of the jobs.

Lines count against their tenant's tokens like live calls, each once however often its tick is
repeated, but are never refused for it: a chunk ends where the tokens do, and says for how long.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from queueing import wire
from queueing.admission import Admission
from queueing.batch import Batch, Cursor, Fault
from queueing.batch_endpoints import BATCH_ENDPOINTS, LineCall
from queueing.batch_input import Checked, InputFault, InputRules
from queueing.batch_output import LineId, OutputLine, line_of_error
from queueing.batch_store import BatchStore
from queueing.errors import FailureCode, PromptmillError, RequestError
from queueing.files import FileStore
from queueing.job import (
    BatchLine,
    Job,
    JobError,
    Priority,
    encode_base62,
    generate_queue,
)
from queueing.served_model import ServedModels
from queueing.tenants import Tenant
from workers.batch_run import BatchRun

_MISSING = Fault("input_file_missing", "the input file is not on this worker's disk")
_CUT_SHORT = Fault("input_file_cut_short", "the input file ends before its last line")


class InputLost(PromptmillError):
    """The input is not what it was, or not there; its batch cannot go on."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class LinePolicy:
    """Whose lines they are, and the models this tenant may use."""

    tenant: Tenant
    models: ServedModels


@dataclass(frozen=True, slots=True)
class TickLimits:
    """Bounds of the input and of one tick.

    A chunk is what is read and recorded at once: so many lines, or what fits into `chunk_s`. A
    tick takes up to `max_chunks`. Without news a batch is looked at every `idle_s`; after the
    queue or the disk was full, after `full_s`.
    """

    max_lines: int = 50_000
    max_line_bytes: int = 1_048_576
    chunk_lines: int = 128
    chunk_s: float = 2.0
    max_chunks: int = 4
    idle_s: float = 5.0
    full_s: float = 5.0


@dataclass(frozen=True, slots=True)
class NextLine:
    """A line beyond the cursor. `is_sent` when a tick that died sent it: it will be harvested."""

    id: LineId
    url: str
    body: dict[str, Any]  # JSON that its endpoint checks
    after: Cursor
    is_sent: bool


@dataclass(slots=True)
class Chunk:
    """The next lines of the input: jobs to send, lines that were refused, where they end.

    `wait_s` is above 0 when the tenant's tokens ended it: how long until more is worth asking.
    """

    end: Cursor
    jobs: list[Job] = field(default_factory=list)
    refused: list[OutputLine] = field(default_factory=list)
    wait_s: float = 0.0


class BatchLines:
    """Reads the inputs of batches. Thread-safe: it holds nothing of a batch."""

    def __init__(
        self,
        files: FileStore,
        batches: BatchStore,
        admission: Admission,
        policy_of: Callable[[str], LinePolicy],
        limits: TickLimits | None = None,
    ) -> None:
        """Take `policy_of`, which tells a tenant's policy by its name."""
        self._policy_of = policy_of
        self._files = files
        self._batches = batches
        self._admission = admission
        self._limits = limits or TickLimits()
        self._rules = InputRules(
            max_lines=self._limits.max_lines, max_line_bytes=self._limits.max_line_bytes
        )

    def check(self, batch: Batch) -> Checked:
        """Check a whole input; raises InputLost when there is none."""
        try:
            with self._files.open(batch.input_file) as stream:
                return self._rules.check_file(stream)
        except FileNotFoundError as error:
            raise InputLost(_MISSING) from error

    def chunk(self, run: BatchRun, limit: int) -> Chunk:
        """Make jobs of up to `limit` next lines; raises InputLost."""
        policy = self._policy_of(run.batch.tenant)
        chunk = Chunk(run.progress.cursor)
        for line in self.after_cursor(run, limit):
            if not line.is_sent:
                try:
                    call = _read(run.batch, line, policy)
                except RequestError as error:
                    refusal = JobError(error.code, error.message, error.param)
                    chunk.refused.append(line_of_error(line.id, refusal))
                else:
                    chunk.wait_s = self._take(run.batch, line, policy, call)
                    if chunk.wait_s > 0:
                        return chunk
                    chunk.jobs.append(_job_of(run, line, call, policy.tenant))
            chunk.end = line.after
        return chunk

    def after_cursor(self, run: BatchRun, limit: int) -> Iterator[NextLine]:
        """Read on from the cursor, up to `limit` lines or as long as a chunk may take.

        Raises InputLost, also when there is nothing although not all lines were read.
        """
        cursor = run.progress.cursor
        sent = self._batches.sent_after(run.batch.id, cursor.line)
        stop_s = time.monotonic() + self._limits.chunk_s
        number = 0
        try:
            with self._files.open(run.batch.input_file) as stream:
                for number, line in enumerate(self._rules.reader(stream, cursor), start=1):
                    asked = self._rules.parse(line)
                    line_id = LineId(line_job_id(run.batch.id, line.after.line), asked.custom_id)
                    is_sent = line.after.line in sent
                    yield NextLine(line_id, asked.url, asked.body, line.after, is_sent)
                    if number == limit or time.monotonic() > stop_s:
                        return
        except FileNotFoundError as error:
            raise InputLost(_MISSING) from error
        except InputFault as error:
            raise InputLost(error.fault) from error
        if number == 0:
            raise InputLost(_CUT_SHORT)

    def _take(self, batch: Batch, line: NextLine, policy: LinePolicy, call: LineCall) -> float:
        """Count a line's tokens; return 0, or the seconds to wait before they can be had."""
        tenant = policy.tenant
        verdict = self._admission.take_line(
            tenant.name, tenant.limits, call.sized.cost, batch.id, line.after.line
        )
        return float(verdict.retry_after_s)


def line_job_id(batch_id: str, line: int) -> str:
    """Return the id of a line's job. It follows from batch and line, so that sending repeats."""
    digest = hashlib.blake2b(f"{batch_id}/{line}".encode(), digest_size=16).digest()
    return "job_" + encode_base62(int.from_bytes(digest, "big"))


def _read(batch: Batch, line: NextLine, policy: LinePolicy) -> LineCall:
    """Return what a line asks for; raises RequestError."""
    if line.url != batch.endpoint:
        message = f"url must be that of the batch, {batch.endpoint}"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "url")
    call = BATCH_ENDPOINTS[batch.endpoint].read(line.body, policy.models)
    quota = policy.tenant.limits.tokens_per_day
    if quota is not None and call.sized.cost > quota:
        message = f"the line may take {call.sized.cost} tokens; the day's quota is {quota}"
        raise RequestError(FailureCode.QUOTA_EXCEEDED, message)
    return call


def _job_of(run: BatchRun, line: NextLine, call: LineCall, tenant: Tenant) -> Job:
    batch, request = run.batch, call.sized.request
    return Job(
        id=line.id.job_id,
        queue=generate_queue(request.model),
        request=wire.encode_request(request),
        kind=request.kind,
        tenant=batch.tenant,
        priority=Priority.BULK,
        cost=call.sized.cost,
        weight=tenant.tier.weight,
        deadline_s=max(0.001, run.left_s),
        metadata=None if call.metadata is None else json.dumps(call.metadata),
        batch=BatchLine(batch.id, line.after.line, line.id.custom_id, run.lease.fence),
    )
