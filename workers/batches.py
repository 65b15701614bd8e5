"""BatchTicker: one bounded step of a batch. Joins the queue, the batch's record and its files.

A batch is a job of its own queue, claimed and leased like any other. A tick does what can be done
now, records each piece of it in one script that checks the fence, and hands the batch back. It may
die anywhere and be repeated by anybody:

- sending: lines become jobs first and the cursor moves afterwards. A line beyond the cursor may
  thus be sent already; the store knows such lines, and ids that follow from batch and line make a
  second job impossible.
- harvesting: only lines up to the cursor, so what was sent beyond it stays known. Answers go to a
  segment first; the script that makes it part of the batch deletes their jobs.
- finishing: the joined files become known in the script that ends the batch.

Must not know Celery or HTTP, and never looks inside a prompt.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from ops.logs import Event
from ops.metrics import BatchMetrics
from queueing import wire
from queueing.batch import Batch, BatchStatus, Cursor, Fault, Progress
from queueing.batch_input import MARK_NOTE, InputRules
from queueing.batch_output import (
    LineId,
    LineKind,
    NotRun,
    OutputLine,
    SegmentFolder,
    kind_of_segment,
    line_not_run,
    line_of_error,
    line_of_result,
    segment_name,
)
from queueing.batch_store import BatchFiles, BatchStore, EndedLine
from queueing.errors import FailureCode, QueueFull, RequestError, StorageFull
from queueing.files import FileStore, PlacedFile
from queueing.job import (
    BatchLine,
    Job,
    JobError,
    JobResult,
    JobState,
    Lease,
    Outcome,
    Priority,
    Usage,
    encode_base62,
    generate_queue,
)
from queueing.queue import JobQueue
from queueing.served_model import SizedRequest

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LinePolicy:
    """How a tenant's lines are taken.

    `read_body` raises RequestError for what the API would refuse too; `weight` is that of Job.
    """

    read_body: Callable[[dict[str, Any]], SizedRequest]
    weight: float = 1.0


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


class BatchTicker:
    """Advances batches. Thread-safe: all of a tick's state is in its BatchRun."""

    def __init__(
        self,
        queue: JobQueue,
        batches: BatchStore,
        files: FileStore,
        policy_of: Callable[[str], LinePolicy],
        metrics: BatchMetrics,
        limits: TickLimits | None = None,
    ) -> None:
        self._queue = queue
        self._batches = batches
        self._files = files
        self._policy_of = policy_of
        self._metrics = metrics
        self._limits = limits or TickLimits()

    def tick(self, lease: Lease) -> None:
        """Do one bounded piece of a batch's work and let go of the lease, or end the batch.

        Raises StaleLease when somebody else has taken the batch over, and StoreUnavailable; then
        nothing of what was not recorded counts. A full disk delays the next tick.
        """
        batch = self._batches.read(lease.job_id)
        if batch is None:
            self._drop(lease)
            return
        segments = SegmentFolder(self._files.data_dir, batch.id)
        run = BatchRun(lease, batch, self._batches, segments)
        if batch.status.is_terminal:
            # A repeat of the tick that ended it: no more than the clean-up can be left.
            run.segments.remove()
            return
        try:
            self._advance(run)
        except StorageFull:
            self._queue.release(lease, delay_s=self._limits.full_s)

    def _advance(self, run: "BatchRun") -> None:
        if run.progress.total is None:
            self._validate(run)
        if run.progress.faults:
            self._end(run, BatchStatus.FAILED, BatchFiles())
            return
        self._harvest(run)
        self._expire(run)
        delay_s = self._limits.idle_s
        if run.batch.status is BatchStatus.IN_PROGRESS:
            delay_s = self._send(run)
        else:
            self._drain(run)
            self._harvest(run)
        if run.progress.is_settled:
            self._finish(run)
        else:
            self._batches.rest(run.lease, run.batch, delay_s=delay_s)

    def _validate(self, run: "BatchRun") -> None:
        """Check the whole input; record that it is sound, or leave its faults in the run."""
        try:
            with self._files.open(run.batch.input_file) as stream:
                checked = self._rules(run).check_file(stream)
        except FileNotFoundError:
            fault = Fault("input_file_missing", "the input file is not on this worker's disk")
            run.leave_faults((fault,))
            return
        if checked.faults:
            run.leave_faults(checked.faults)
            return
        notes = (MARK_NOTE,) if checked.has_mark else ()
        progress = replace(run.progress, total=checked.num_requests, notes=notes)
        run.record(progress, change=(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))

    def _harvest(self, run: "BatchRun") -> None:
        """Put the answers of ended lines into segments."""
        for _ in range(self._limits.max_chunks):
            ended = self._batches.ended(
                run.batch.id, run.progress.cursor.line, limit=self._limits.chunk_lines
            )
            if not ended:
                return
            results = self._batches.results([line.job_id for line in ended])
            lines = [
                _line_of(run.progress, line, result, int(arrival_s))
                for line, (result, arrival_s) in zip(ended, results, strict=True)
            ]
            run.record(run.write(lines), harvested=ended)

    def _expire(self, run: "BatchRun") -> None:
        """Send no more lines once the window is over."""
        if run.batch.now_s >= run.batch.expires_s and not run.progress.is_settled:
            change = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
            run.record(replace(run.progress, is_expired=True), change=change)

    def _send(self, run: "BatchRun") -> float:
        """Fill the window with lines; return how long there is nothing to do after that."""
        policy = self._policy_of(run.batch.tenant)
        for _ in range(self._limits.max_chunks):
            room = run.batch.window - run.progress.num_in_flight
            if run.progress.is_all_sent or room <= 0:
                return self._until_news_s(run)
            chunk = self._read_chunk(run, policy, min(room, self._limits.chunk_lines))
            try:
                self._queue.enqueue_many(chunk.jobs)
            except QueueFull:
                return self._limits.full_s
            run.record(replace(run.write(chunk.refused), cursor=chunk.end))
        return 0.0

    def _drain(self, run: "BatchRun") -> None:
        """End what is queued or running, and account for lines that were never sent."""
        for job_id in self._batches.live(run.batch.id):
            self._queue.cancel(job_id, run.batch.tenant)
        reason = NotRun.EXPIRED if run.progress.is_expired else NotRun.CANCELLED
        for _ in range(self._limits.max_chunks):
            if run.progress.is_all_sent:
                return
            lines = []
            end = run.progress.cursor
            for line in self._next_lines(run, self._limits.chunk_lines):
                end = line.after
                if not line.is_sent:
                    lines.append(line_not_run(line.id, reason))
            run.record(replace(run.write(lines), cursor=end))

    def _finish(self, run: "BatchRun") -> None:
        """Join the segments into files and end the batch with them."""
        if run.batch.status is BatchStatus.IN_PROGRESS:
            change = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
            run.record(run.progress, change=change)
        files = BatchFiles(
            output=self._join(run, LineKind.OUTPUT, run.progress.completed),
            error=self._join(run, LineKind.ERROR, run.progress.failed),
        )
        end = BatchStatus.EXPIRED if run.progress.is_expired else BatchStatus.COMPLETED
        self._end(run, end, files)
        run.segments.remove()

    def _end(self, run: "BatchRun", end: BatchStatus, files: BatchFiles) -> None:
        progress = run.progress
        status = self._batches.finish(run.lease, run.batch, end, files)
        run.log(status)
        self._metrics.ended.labels(status=status.value).inc()
        self._metrics.duration_seconds.observe(run.batch.now_s - run.batch.created_s)
        finished = self._metrics.requests_finished
        finished.labels(outcome="completed").inc(progress.completed)
        finished.labels(outcome="failed").inc(progress.failed)

    def _join(self, run: "BatchRun", kind: LineKind, num_lines: int) -> PlacedFile | None:
        if num_lines == 0:
            return None
        names = [name for name in run.progress.segments if kind_of_segment(name) is kind]
        with self._files.draft() as draft:
            num_joined = run.segments.join(names, draft)
            assert num_joined == num_lines, f"{num_joined} {kind} lines, {num_lines} were counted"
            return self._files.place(draft)

    def _read_chunk(self, run: "BatchRun", policy: LinePolicy, limit: int) -> "Chunk":
        chunk = Chunk(run.progress.cursor)
        for line in self._next_lines(run, limit):
            chunk.end = line.after
            if line.is_sent:
                continue
            try:
                sized = policy.read_body(line.body)
            except RequestError as error:
                refusal = JobError(error.code, error.message, error.param)
                chunk.refused.append(line_of_error(line.id, refusal))
            else:
                chunk.jobs.append(_job_of(run, line, sized, policy.weight))
        return chunk

    def _next_lines(self, run: "BatchRun", limit: int) -> Iterator["NextLine"]:
        """Read on from the cursor, up to `limit` lines or as long as a chunk may take."""
        rules = self._rules(run)
        cursor = run.progress.cursor
        sent = self._batches.sent_after(run.batch.id, cursor.line)
        stop_s = time.monotonic() + self._limits.chunk_s
        with self._files.open(run.batch.input_file) as stream:
            for number, line in enumerate(rules.reader(stream, cursor), start=1):
                request = rules.parse(line)
                line_id = LineId(line_job_id(run.batch.id, line.after.line), request.custom_id)
                yield NextLine(line_id, request.body, line.after, line.after.line in sent)
                if number == limit or time.monotonic() > stop_s:
                    return

    def _rules(self, run: "BatchRun") -> InputRules:
        return InputRules(
            (run.batch.endpoint,),
            max_lines=self._limits.max_lines,
            max_line_bytes=self._limits.max_line_bytes,
        )

    def _until_news_s(self, run: "BatchRun") -> float:
        """Ended lines bring the tick forward; the end of the window has nobody to do so."""
        left_s = run.batch.expires_s - run.batch.now_s
        return min(self._limits.idle_s, max(0.0, left_s))

    def _drop(self, lease: Lease) -> None:
        message = "the batch's record is gone"
        result = JobResult.failure(JobState.FAILED, FailureCode.NOT_FOUND, message)
        self._queue.finish(Outcome(lease, result))


class BatchRun:
    """One tick at work: the batch as this tick has recorded it, and where its segments go."""

    def __init__(
        self, lease: Lease, batch: Batch, batches: BatchStore, segments: SegmentFolder
    ) -> None:
        self.lease = lease
        self.batch = batch
        self.segments = segments
        self._batches = batches

    @property
    def progress(self) -> Progress:
        """What is recorded."""
        return self.batch.progress

    def write(self, lines: list[OutputLine]) -> Progress:
        """Write lines to new segments; return the progress that names them, to be recorded."""
        progress = self.progress
        for kind in LineKind:
            some = [line for line in lines if line.kind is kind]
            if some:
                name = segment_name(self.lease.fence, len(progress.segments) + 1, kind)
                self.segments.write(name, some)
                progress = replace(progress, segments=(*progress.segments, name))
        num_completed = sum(line.kind is LineKind.OUTPUT for line in lines)
        return replace(
            progress,
            completed=progress.completed + num_completed,
            failed=progress.failed + len(lines) - num_completed,
            usage=_add_usage(progress.usage, lines),
        )

    def record(
        self,
        progress: Progress,
        *,
        change: tuple[BatchStatus, BatchStatus] | None = None,
        harvested: list[EndedLine] | None = None,
    ) -> None:
        """Make progress true; raises StaleLease."""
        status = self._batches.commit(
            self.lease, progress, change=change, harvested=harvested or []
        )
        is_changed = status is not self.batch.status
        self.batch = replace(self.batch, progress=progress, status=status)
        if is_changed:
            self.log(status)

    def log(self, status: BatchStatus) -> None:
        """Say that the batch has another status now."""
        log.info(
            Event.BATCH_CHANGED,
            batch_id=self.batch.id,
            status=status.value,
            num_lines=self.progress.total,
            num_completed=self.progress.completed,
            num_failed=self.progress.failed,
        )

    def leave_faults(self, faults: tuple[Fault, ...]) -> None:
        """Note why the batch fails; recorded when it ends."""
        self.batch = replace(self.batch, progress=replace(self.progress, faults=faults))


@dataclass(frozen=True, slots=True)
class NextLine:
    """A line beyond the cursor. `is_sent` when a tick that died sent it: it will be harvested."""

    id: LineId
    body: dict[str, Any]  # JSON that its policy checks
    after: Cursor
    is_sent: bool


@dataclass(slots=True)
class Chunk:
    """The next lines of the input: jobs to send, lines that were refused, where they end."""

    end: Cursor
    jobs: list[Job] = field(default_factory=list)
    refused: list[OutputLine] = field(default_factory=list)


def line_job_id(batch_id: str, line: int) -> str:
    """Return the id of a line's job. It follows from batch and line, so that sending repeats."""
    digest = hashlib.blake2b(f"{batch_id}/{line}".encode(), digest_size=16).digest()
    return "job_" + encode_base62(int.from_bytes(digest, "big"))


def _job_of(run: BatchRun, line: NextLine, sized: SizedRequest, weight: float) -> Job:
    batch = run.batch
    return Job(
        id=line.id.job_id,
        queue=generate_queue(sized.request.model),
        request=wire.encode_request(sized.request),
        tenant=batch.tenant,
        priority=Priority.BULK,
        cost=sized.cost,
        weight=weight,
        deadline_s=max(0.001, batch.expires_s - batch.now_s),
        batch=BatchLine(batch.id, line.after.line, line.id.custom_id, run.lease.fence),
    )


def _line_of(
    progress: Progress, line: EndedLine, result: JobResult | None, created_s: int
) -> OutputLine:
    line_id = LineId(line.job_id, line.custom_id)
    if line.state is JobState.CANCELLED and progress.is_expired:
        return line_not_run(line_id, NotRun.EXPIRED)
    if result is None:
        message = "the line's result was erased before the batch had written it"
        return line_of_error(line_id, JobError(FailureCode.RESULT_EXPIRED, message))
    return line_of_result(line_id, result, created_s)


def _add_usage(usage: Usage, lines: list[OutputLine]) -> Usage:
    return Usage(
        usage.prompt_tokens + sum(line.usage.prompt_tokens for line in lines),
        usage.completion_tokens + sum(line.usage.completion_tokens for line in lines),
        usage.cached_tokens + sum(line.usage.cached_tokens for line in lines),
    )
