"""EnginePool: a Celery pool that owns the engine; one slot per sequence.

Celery hands it requests whose only argument is a job's id; the claim behind each lies in the
Intake. The pool tokenises, passes the job to the stepping thread, and tells Celery what became of
it. What a person sees through Celery (active, revoke, events) is Celery's own; the truth about a
job is the queue's.

Threads: Celery's main thread calls every method here but those of the two threads started here.
What ended comes back to the main thread through its event loop, because Celery's requests are not
thread-safe.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.exceptions import Terminated

from engine.grammar import Grammars
from engine.sequence import Pooling
from engine.tokenizer import Tokenizer
from ops.logs import Event
from queueing.errors import FailureCode, RequestError, StoreUnavailable
from queueing.job import Claim, JobKind, JobResult, JobState, Lease
from queueing.switches import Switch, SwitchWatch
from queueing.transport import turn_again
from queueing.wire import UnknownVersion
from workers.answer_cache import AnswerCache
from workers.delivery import Delivery, Ended
from workers.embedding import prepare_embedding
from workers.engine_job import EngineJob
from workers.intake import Intake
from workers.leases import LeaseRenewer
from workers.running import prepare
from workers.serving import ServingLoop
from workers.standby import Standby

EXIT_FATAL = 70  # EX_SOFTWARE: the supervisor starts the process again
_NEWER_VERSION_DELAY_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What the composition root built for one engine worker; the Celery app carries it as
    `engine_parts`.
    """

    intake: Intake
    tokenizer: Tokenizer
    grammars: Grammars
    pooling: Pooling
    serving: ServingLoop
    delivery: Delivery
    renewer: LeaseRenewer
    switches: SwitchWatch
    answers: AnswerCache
    standby: Standby
    watchdog_s: float


class JobFailed(Exception):
    """How a job that did not complete looks to Celery; the text is its failure code."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Handle:
    """What Celery keeps of a running request: a way to terminate it, and when it began."""

    lease: Lease
    callback: Callable[..., None]
    drop: Callable[[Lease], None]
    started: float

    def terminate(self, _signal: Any = None) -> None:
        """Drop the job's sequence, never the process; Celery has settled the lease already."""
        self.drop(self.lease)


class EnginePool(BasePool):
    """Runs prompt jobs on the engine of this process."""

    def on_start(self) -> None:
        """Start the stepping and the delivery thread."""
        self._parts: EngineParts = self.app.engine_parts
        self._handles: dict[str, Handle] = {}
        self._ended: queue.SimpleQueue[Sequence[Ended]] = queue.SimpleQueue()
        self._hub: Any = None
        self._stopping = threading.Event()
        self._stepping_ended = threading.Event()
        self._log = structlog.stdlib.get_logger(__name__)
        self._parts.intake.on_cancel(self._cancel)
        self._parts.delivery.on_ended(self._note_ended)
        self._parts.standby.obey()  # before anything is claimed
        self._threads = [
            threading.Thread(target=self._step_forever, name="stepping", daemon=True),
            threading.Thread(target=self._deliver_forever, name="delivery", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def register_with_event_loop(self, loop: Any) -> None:
        """Take ended jobs at every turn of the loop, also when a lost connection reset it."""
        self._hub = loop
        loop.on_tick.add(self._complete_ended)

    def on_apply(self, *args: Any, **options: Any) -> Handle:  # type: ignore[override]  # the stub says None
        """Begin a job. Celery's task function is not called: the engine is what runs it."""
        _target, (_name, _id, headers, *_rest), *_ = args
        callback, accept_callback = options["callback"], options["accept_callback"]
        lease = Lease(headers["id"], headers["queue"], headers["fence"])
        handle = Handle(lease, callback, self._drop, time.monotonic())
        self._handles[lease.tag] = handle
        accept_callback(os.getpid(), time.monotonic())
        claim = self._parts.intake.held(lease.tag)
        if claim is None:  # revoked while it was accepted, or lost on the way
            self._handles.pop(lease.tag, None)
        else:
            self._begin(claim)
        return handle

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Do nothing: the process stays; Celery terminates the handle next."""

    def on_stop(self) -> None:
        """Stop both threads and hand back what is still held, without a loss."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for lease in self._parts.intake.leases():
            try:
                self._parts.intake.release(lease)
            except StoreUnavailable as error:  # the lease runs out instead
                self._log.warning(Event.STORE_LOST, reason=error.kind)
                return
            self._log.info(Event.JOB_RELEASED, job_id=lease.job_id, fence=lease.fence)

    on_terminate = on_stop

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()  # type: ignore[misc]  # not in the stub
        return {**info, "jobs": len(self._handles)}

    def _begin(self, claim: Claim) -> None:
        parts, lease = self._parts, claim.lease
        try:
            job = self._prepared(claim)
        except UnknownVersion:
            parts.intake.release(lease, delay_s=_NEWER_VERSION_DELAY_S)
            self._note_ended([Ended(lease.tag, None, None)])
        except RequestError as error:
            result = JobResult.failure(JobState.FAILED, error.code, error.message, error.param)
            parts.delivery.refuse(lease, result)
        except Exception:  # noqa: BLE001  around a task: Celery would take it for a lost connection
            self._log.exception(Event.TURN_FAILED, job_id=lease.job_id, fence=lease.fence)
            result = JobResult.failure(
                JobState.FAILED, FailureCode.INTERNAL_ERROR, "the request could not be read"
            )
            parts.delivery.refuse(lease, result)
        else:
            self._run_or_reuse(job)

    def _run_or_reuse(self, job: EngineJob) -> None:
        known = self._parts.answers.find(job)
        if known is not None:
            self._parts.delivery.refuse(job.claim.lease, known)
            return
        self._parts.delivery.expect(job)
        self._parts.serving.submit(job)

    def _prepared(self, claim: Claim) -> EngineJob:
        parts = self._parts
        if claim.kind is JobKind.EMBED:
            return prepare_embedding(claim, parts.tokenizer, parts.pooling)
        job = prepare(claim, parts.tokenizer, parts.grammars)
        job.end_after(parts.switches.value(Switch.MAX_TOKENS))
        return job

    def _cancel(self, lease: Lease) -> None:
        """Stop a job that the queue has ended as cancelled already, and show it as revoked."""
        if self._parts.intake.forget(lease):
            self._drop(lease)
            self._note_ended([Ended(lease.tag, JobState.CANCELLED, None)])

    def _drop(self, lease: Lease) -> None:
        self._parts.delivery.lose(lease.tag)

    def _note_ended(self, ended: Sequence[Ended]) -> None:
        """Pass ended jobs to the main thread. Any thread."""
        self._ended.put(ended)
        if self._hub is not None:
            self._hub.call_soon(self._complete_ended)

    def _complete_ended(self) -> None:
        if self._ended.empty():
            return
        while not self._ended.empty():
            for ended in self._ended.get():
                handle = self._handles.pop(ended.tag, None)
                if handle is not None:
                    _tell_celery(handle, ended)
        if self._hub is not None:
            turn_again(self._hub)  # Celery leaves the acknowledgements to be called soon

    def _step_forever(self) -> None:
        try:
            while not self._stopping.is_set():
                self._parts.serving.turn()
        except Exception:  # noqa: BLE001  around a turn: whatever it is, the process ends
            self._die(Event.TURN_FAILED)
        finally:
            self._stepping_ended.set()

    def _deliver_forever(self) -> None:
        parts = self._parts
        try:
            while not self._stepping_ended.is_set():
                parts.delivery.turn()
                parts.answers.flush()
                parts.renewer.renew_when_due()
                parts.standby.obey()
                if parts.renewer.stalled_s() > parts.watchdog_s:
                    self._die(Event.WATCHDOG_EXPIRED)
            parts.delivery.turn(wait_s=0.0)
        except Exception:  # noqa: BLE001  around a turn: whatever it is, the process ends
            self._die(Event.TURN_FAILED)

    def _die(self, event: Event) -> None:
        """End the process: its leases run out, its jobs go elsewhere, its supervisor starts it
        again.
        """
        self._log.critical(event, exc_info=True)
        os._exit(EXIT_FATAL)


def _tell_celery(handle: Handle, ended: Ended) -> None:
    runtime = time.monotonic() - handle.started
    match ended.state:
        case JobState.COMPLETED:
            handle.callback((0, None, runtime))
        case JobState.CANCELLED | None:
            handle.callback((1, _raised(Terminated("cancelled")), runtime))
        case _:
            failure = JobFailed(ended.code.value if ended.code else ended.state.value)
            handle.callback((1, _raised(failure), runtime))


def _raised(error: Exception) -> ExceptionInfo:
    """Return an exception as Celery hands it around; it has to be raised once."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()
