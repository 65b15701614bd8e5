"""BatchRun: one tick at work. Owns what the tick knows of its batch and how that becomes true.

Must not know the input, the queue or Celery.
"""

from dataclasses import replace

import structlog

from ops.logs import Event
from queueing.batch import Batch, BatchStatus, Fault, Progress
from queueing.batch_output import LineKind, OutputLine, SegmentFolder, segment_name
from queueing.batch_store import BatchStore, EndedLine
from queueing.job import Lease, Usage

log = structlog.stdlib.get_logger(__name__)


class BatchRun:
    """The batch as this tick has recorded it, and where its segments go."""

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

    @property
    def left_s(self) -> float:
        """How much of the window was left when the tick began."""
        return max(0.0, self.batch.expires_s - self.batch.now_s)

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

    def record_faults(self, faults: tuple[Fault, ...]) -> None:
        """Record why the batch fails; raises StaleLease."""
        self.record(replace(self.progress, faults=faults))

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


def _add_usage(usage: Usage, lines: list[OutputLine]) -> Usage:
    return Usage(
        usage.prompt_tokens + sum(line.usage.prompt_tokens for line in lines),
        usage.completion_tokens + sum(line.usage.completion_tokens for line in lines),
        usage.cached_tokens + sum(line.usage.cached_tokens for line in lines),
    )
