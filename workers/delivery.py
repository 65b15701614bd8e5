"""Delivery: tokens to text, texts and vectors to results, results to the queue; and the leases of
what still runs.

Owns every EngineJob from `expect` until it ended. Runs in one thread, the only one of an engine
worker that waits for Redis while the engine steps. A store that is away is asked again; nothing is
dropped meanwhile.
"""

import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from engine.plan import StepOutput
from ops.logs import Event as LogEvent
from queueing.errors import FailureCode, StoreUnavailable
from queueing.failpoints import Failpoint
from queueing.job import JobResult, JobState, Lease, Outcome
from queueing.queue import JobQueue
from workers.engine_job import EngineJob, tag_of
from workers.observer import EngineObserver
from workers.running import RunningJob
from workers.serving import Event, Late, Refused, Stepped
from workers.stream_writer import StreamWriter

_RETRY_S = 0.5
_MAX_BATCH = 256


@dataclass(frozen=True, slots=True)
class Ended:
    """A job this worker is done with.

    `state` is None when somebody else ended it or holds it now.
    """

    tag: str
    state: JobState | None
    code: FailureCode | None


class Delivery:
    """Ends jobs.

    `expect`, `refuse` and `lose` may be called from any thread, `turn` from one only.
    """

    def __init__(
        self,
        jobs: JobQueue,
        streams: StreamWriter,
        events: "queue.SimpleQueue[Event]",
        observer: EngineObserver,
        *,
        abort: Callable[[str], None],
        on_finished: Callable[[Lease], object],
    ) -> None:
        """Take how to drop a sequence from the engine, and how to stop holding a lease."""
        self._jobs = jobs
        self._streams = streams
        self._events = events
        self._observer = observer
        self._abort = abort
        self._on_finished = on_finished
        self._on_made: Callable[[EngineJob, JobResult], None] = lambda _job, _result: None
        self._on_ended: Callable[[Sequence[Ended]], None] = lambda _ended: None
        self._running: dict[str, EngineJob] = {}
        self._pending: list[Outcome] = []
        self._lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._retry_at = 0.0
        self._log = structlog.stdlib.get_logger(__name__).bind()  # once, not at every job

    def on_ended(self, callback: Callable[[Sequence[Ended]], None]) -> None:
        """Name who is told which jobs have ended; called by the delivery thread."""
        self._on_ended = callback

    def on_made(self, callback: Callable[[EngineJob, JobResult], None]) -> None:
        """Name who is told what the engine made of each job; called by the delivery thread."""
        self._on_made = callback

    def expect(self, job: EngineJob) -> None:
        """Take a job over before its first token can come."""
        self._jobs.failpoints.reach(Failpoint.STARTED)
        self._running[job.tag] = job
        self._observer.claimed(job)

    def refuse(self, lease: Lease, result: JobResult) -> None:
        """End a job that never came as far as the engine."""
        self._pending.append(Outcome(lease, result))

    def lose(self, tag: str) -> None:
        """Drop a job that was ended by others or is somebody else's now."""
        self._lost.put(tag)

    def turn(self, wait_s: float = 0.1) -> None:
        """Wait for events, apply them all, and write the text and the results that are ready."""
        with suppress(queue.Empty):
            self._apply(self._events.get(timeout=wait_s))
        while not self._events.empty():
            self._apply(self._events.get())
        while not self._lost.empty():
            self._drop(self._lost.get())
        self._streams.flush()
        self._flush()

    def _apply(self, event: Event) -> None:
        match event:
            case Stepped(output):
                self._take_step(output)
            case Refused(tag, reason):
                self._end(tag, JobState.FAILED, FailureCode.CONTEXT_LENGTH_EXCEEDED, reason)
            case Late(tag):
                self._end(
                    tag,
                    JobState.EXPIRED,
                    FailureCode.DEADLINE_EXCEEDED,
                    "the deadline passed while the job was running",
                )

    def _take_step(self, output: StepOutput) -> None:
        self._observer.step(output)
        for token in output.tokens:
            job = self._job_of(token.sequence_id)
            if not isinstance(job, RunningJob):  # whole, or gone: nothing else is given tokens
                continue
            self._jobs.failpoints.reach(Failpoint.GENERATING)
            self._streams.note(job)
            if job.take(token):
                self._abort(token.sequence_id)
                self._complete_if_ended(job)
        for completion in output.finished:
            job = self._job_of(completion.sequence_id)
            if job is not None:
                job.end(completion)
                self._complete_if_ended(job)

    def _job_of(self, sequence_id: str) -> EngineJob | None:
        """Return whose sequence it is; None when what it makes is whole or the job is gone."""
        job = self._running.get(tag_of(sequence_id))
        return None if job is None or job.is_whole(sequence_id) else job

    def _complete_if_ended(self, job: EngineJob) -> None:
        if not job.has_ended:
            return
        result = job.result()
        del self._running[job.tag]
        self._streams.forget(job.tag)
        self._pending.append(Outcome(job.claim.lease, result))
        self._observer.generated(job, result)
        self._on_made(job, result)

    def _end(self, tag: str, state: JobState, code: FailureCode, message: str) -> None:
        job = self._running.pop(tag, None)
        if job is not None:
            self._streams.forget(tag)
            result = job.failed(state, code, message)
            self._observer.generated(job, result)
            if state is JobState.EXPIRED:
                self._observer.missed(job)
            self._pending.append(Outcome(job.claim.lease, result, stage=job.clock.stage()))

    def _drop(self, tag: str) -> None:
        self._streams.forget(tag)
        job = self._running.pop(tag, None)
        if job is None:
            return
        for sequence in job.sequences:
            self._abort(sequence.id)
        self._on_ended([Ended(tag, None, None)])

    def _flush(self) -> None:
        while self._pending and time.monotonic() >= self._retry_at:
            outcomes = self._pending[:_MAX_BATCH]
            self._jobs.failpoints.reach(Failpoint.FINISHING)
            try:
                states = self._jobs.finish_many(outcomes)
            except StoreUnavailable as error:
                self._retry_at = time.monotonic() + _RETRY_S
                self._log.warning(
                    LogEvent.STORE_LOST, reason=error.kind, num_results=len(self._pending)
                )
                return
            self._jobs.failpoints.reach(Failpoint.FINISHED)
            del self._pending[: len(outcomes)]
            self._report(outcomes, states)

    def _report(self, outcomes: Sequence[Outcome], states: Sequence[JobState | None]) -> None:
        ended = []
        for outcome, state in zip(outcomes, states, strict=True):
            lease, result = outcome.lease, outcome.result
            error = result.error
            self._on_finished(lease)
            ended.append(Ended(lease.tag, state, error.code if error else None))
            if state is None:
                self._observer.refused()
            self._log.info(
                LogEvent.JOB_FINISHED if state else LogEvent.RESULT_REFUSED,
                job_id=lease.job_id,
                fence=lease.fence,
                outcome=(state or result.state).value,
                num_prompt_tokens=result.usage.prompt_tokens,
                num_completion_tokens=result.usage.completion_tokens,
                **result.stages,
            )
        self._on_ended(ended)
