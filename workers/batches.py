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
- giving up: a batch whose input breaks a rule, or is lost while it runs, fails with the reason.
  Lines that were sent until then are in its files all the same; of the others nobody knows more.

Must not know Celery or HTTP, nor what any endpoint asks or answers.
"""

from dataclasses import replace
from functools import partial

from ops.metrics import BatchMetrics
from queueing.batch import BatchStatus, Progress
from queueing.batch_endpoints import BATCH_ENDPOINTS, CompletedLine
from queueing.batch_input import MARK_NOTE
from queueing.batch_output import (
    LineId,
    LineKind,
    NotRun,
    OutputLine,
    SegmentFolder,
    kind_of_segment,
    line_not_run,
    line_of_answer,
    line_of_error,
    line_of_failure,
)
from queueing.batch_store import BatchFiles, BatchStore, EndedLine
from queueing.errors import FailureCode, QueueFull, RequestError, StorageFull
from queueing.files import FileStore, PlacedFile
from queueing.job import JobError, JobRecord, JobResult, JobState, Lease, Outcome
from queueing.queue import JobQueue
from workers.batch_lines import BatchLines, InputLost, TickLimits
from workers.batch_run import BatchRun

# Beyond every line that a file can have.
_LAST_LINE = 2**53
_WAIT_NOTE = "lines wait: the tenant's tokens are used up"
_ERASED = JobError(
    FailureCode.RESULT_EXPIRED, "the line's result was erased before the batch had written it"
)


class BatchTicker:
    """Advances batches. Thread-safe: all of a tick's state is in its BatchRun."""

    def __init__(
        self,
        queue: JobQueue,
        batches: BatchStore,
        files: FileStore,
        lines: BatchLines,
        metrics: BatchMetrics,
        limits: TickLimits | None = None,
    ) -> None:
        self._queue = queue
        self._batches = batches
        self._files = files
        self._lines = lines
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

    def _advance(self, run: BatchRun) -> None:
        try:
            if run.progress.total is None and not run.progress.faults:
                self._validate(run)
            if not run.progress.faults:
                self._go_on(run)
        except InputLost as lost:
            run.record_faults((lost.fault,))
        if run.progress.faults:
            self._give_up(run)

    def _go_on(self, run: BatchRun) -> None:
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

    def _validate(self, run: BatchRun) -> None:
        """Check the whole input; record that it is sound, or its faults."""
        checked = self._lines.check(run.batch)
        if checked.faults:
            run.record_faults(checked.faults)
            return
        notes = (MARK_NOTE,) if checked.has_mark else ()
        progress = replace(run.progress, total=checked.num_requests, notes=notes)
        run.record(progress, change=(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))

    def _harvest(self, run: BatchRun) -> None:
        """Put the answers of ended lines into segments."""
        # A batch that is given up never reads on, so nothing beyond its cursor is sent again.
        up_to = _LAST_LINE if run.progress.faults else run.progress.cursor.line
        for _ in range(self._limits.max_chunks):
            ended = self._batches.ended(run.batch.id, up_to, limit=self._limits.chunk_lines)
            if not ended:
                return
            job_ids = [line.job_id for line in ended]
            records = self._queue.get_many(job_ids, run.batch.tenant)
            lines = [
                self._output_line(run, line, record)
                for line, record in zip(ended, records, strict=True)
            ]
            run.record(run.write(lines), harvested=ended)

    def _output_line(self, run: BatchRun, line: EndedLine, record: JobRecord | None) -> OutputLine:
        line_id = LineId(line.job_id, line.custom_id)
        reason = _why_not_run(run.progress)
        if line.state is JobState.CANCELLED and reason is not NotRun.CANCELLED:
            return line_not_run(line_id, reason)
        if record is None or record.result is None:
            return line_of_error(line_id, _ERASED)
        if record.result.state is not JobState.COMPLETED:
            return line_of_failure(line_id, record.result)
        read_payload = partial(self._read_payload, line.job_id)
        completed = CompletedLine(record, record.result, read_payload)
        try:
            body = BATCH_ENDPOINTS[run.batch.endpoint].answer(completed)
        except RequestError as error:
            return line_of_error(line_id, JobError(error.code, error.message, error.param))
        return line_of_answer(line_id, body, record.result.usage)

    def _read_payload(self, job_id: str) -> str:
        payload = self._queue.request(job_id)
        if payload is None:
            raise RequestError(_ERASED.code, _ERASED.message)
        return payload

    def _expire(self, run: BatchRun) -> None:
        """Send no more lines once the window is over."""
        if run.batch.now_s >= run.batch.expires_s and not run.progress.is_settled:
            change = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
            run.record(replace(run.progress, is_expired=True), change=change)

    def _send(self, run: BatchRun) -> float:
        """Fill the window with lines; return how long there is nothing to do after that."""
        for _ in range(self._limits.max_chunks):
            room = run.batch.window - run.progress.num_in_flight
            if run.progress.is_all_sent or room <= 0:
                # Ended lines bring the tick forward; the end of the window has nobody to do so.
                return min(self._limits.idle_s, run.left_s)
            chunk = self._lines.chunk(run, min(room, self._limits.chunk_lines))
            try:
                self._queue.enqueue_many(chunk.jobs)
            except QueueFull:
                return self._limits.full_s
            notes = _with_wait(run.progress.notes, is_waiting=chunk.wait_s > 0)
            run.record(replace(run.write(chunk.refused), cursor=chunk.end, notes=notes))
            if chunk.wait_s > 0:
                return min(chunk.wait_s, run.left_s)
        return 0.0

    def _drain(self, run: BatchRun) -> None:
        """End what is queued or running, and account for lines that were never sent."""
        self._cancel_live(run)
        reason = _why_not_run(run.progress)
        for _ in range(self._limits.max_chunks):
            if run.progress.is_all_sent:
                return
            lines = []
            end = run.progress.cursor
            for line in self._lines.after_cursor(run, self._limits.chunk_lines):
                end = line.after
                if not line.is_sent:
                    lines.append(line_not_run(line.id, reason))
            run.record(replace(run.write(lines), cursor=end))

    def _cancel_live(self, run: BatchRun) -> None:
        for job_id in self._batches.live(run.batch.id):
            self._queue.cancel(job_id, run.batch.tenant)

    def _give_up(self, run: BatchRun) -> None:
        """End a batch whose input cannot be read as failed; what was answered is kept."""
        self._cancel_live(run)
        self._harvest(run)
        if self._batches.ended(run.batch.id, _LAST_LINE, limit=1):
            self._batches.rest(run.lease, run.batch, delay_s=0.0)
        else:
            self._end(run, BatchStatus.FAILED, self._joined(run))
            run.segments.remove()

    def _finish(self, run: BatchRun) -> None:
        """End a batch whose lines are all in a segment."""
        if run.batch.status is BatchStatus.IN_PROGRESS:
            change = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
            run.record(run.progress, change=change)
        end = BatchStatus.EXPIRED if run.progress.is_expired else BatchStatus.COMPLETED
        self._end(run, end, self._joined(run))
        run.segments.remove()

    def _end(self, run: BatchRun, end: BatchStatus, files: BatchFiles) -> None:
        progress = run.progress
        status = self._batches.finish(run.lease, run.batch, end, files)
        run.log(status)
        self._metrics.ended.labels(status=status.value).inc()
        self._metrics.duration_seconds.observe(run.batch.now_s - run.batch.created_s)
        finished = self._metrics.requests_finished
        finished.labels(outcome="completed").inc(progress.completed)
        finished.labels(outcome="failed").inc(progress.failed)

    def _joined(self, run: BatchRun) -> BatchFiles:
        """Join the segments into files that nobody knows yet."""
        return BatchFiles(
            output=self._join(run, LineKind.OUTPUT, run.progress.completed),
            error=self._join(run, LineKind.ERROR, run.progress.failed),
        )

    def _join(self, run: BatchRun, kind: LineKind, num_lines: int) -> PlacedFile | None:
        if num_lines == 0:
            return None
        names = [name for name in run.progress.segments if kind_of_segment(name) is kind]
        with self._files.draft() as draft:
            num_joined = run.segments.join(names, draft)
            assert num_joined == num_lines, f"{num_joined} {kind} lines, {num_lines} were counted"
            return self._files.place(draft)

    def _drop(self, lease: Lease) -> None:
        message = "the batch's record is gone"
        result = JobResult.failure(JobState.FAILED, FailureCode.NOT_FOUND, message)
        self._queue.finish(Outcome(lease, result))


def _with_wait(notes: tuple[str, ...], *, is_waiting: bool) -> tuple[str, ...]:
    """Return the notes with a word of what the batch waits for, as long as it does."""
    others = tuple(note for note in notes if note != _WAIT_NOTE)
    return (*others, _WAIT_NOTE) if is_waiting else others


def _why_not_run(progress: Progress) -> NotRun:
    if progress.faults:
        return NotRun.FAILED
    return NotRun.EXPIRED if progress.is_expired else NotRun.CANCELLED
