"""Intake: how many jobs a worker claims now, and which claims it holds.

Owns the leases of one process: a claim is held from the moment it is accepted until it is finished,
handed back or lost. Must not know the engine or Celery. Every method is safe from any thread.
"""

import threading
from collections.abc import Callable

from queueing.errors import FailureCode, StaleLease
from queueing.failpoints import Failpoint
from queueing.job import Claim, JobResult, JobState, Lease, Outcome, Priority
from queueing.queue import JobQueue
from queueing.transport import Room

_LEFT_TO_OTHERS = 8


class Intake:
    """The claims of one worker.

    `slots` bounds them. What is more urgent comes on top of them, as many as there are slots but
    for an eighth, which is left to what has been claimed before.
    """

    def __init__(self, queue: JobQueue, worker: str, *, slots: int) -> None:
        self.queue = queue
        self.worker = worker
        self._slots = slots
        self._urgent_slots = slots - slots // _LEFT_TO_OTHERS
        self._lock = threading.Lock()
        self._claims: dict[str, Claim] = {}
        self._is_closed = False
        self._is_paused = False
        self._num_answered: dict[str, int] = {}
        self._on_cancel: Callable[[Lease], None] = lambda _lease: None

    def __json__(self) -> str:
        """Be printable where Celery shows the connection's options (`inspect stats`)."""
        return self.worker

    def on_cancel(self, callback: Callable[[Lease], None]) -> None:
        """Name what stops the work on a cancelled job; called by the consuming thread."""
        self._on_cancel = callback

    def close(self) -> None:
        """Claim nothing more."""
        self._is_closed = True

    def pause(self) -> None:
        """Claim nothing until `resume`."""
        self._is_paused = True

    @property
    def is_paused(self) -> bool:
        """True from `pause` to `resume`."""
        return self._is_paused

    def resume(self) -> None:
        """Claim again, unless closed: the consuming thread looks for work every second."""
        self._is_paused = False

    def room(self) -> Room:
        """Say how much to claim: the free slots; when there are none, what is more urgent.

        Nothing beside a job that must run alone, and nothing when closed or paused.
        """
        with self._lock:
            held = list(self._claims.values())
        num_held = len(held)
        is_shut = self._is_closed or self._is_paused
        if is_shut or any(claim.must_run_alone for claim in held):
            return Room(limit=0, held=num_held)
        if num_held < self._slots:
            return Room(limit=self._slots - num_held, held=num_held)
        for priority in (Priority.STANDARD, Priority.REALTIME):
            num_as_urgent = sum(claim.priority.level <= priority.level for claim in held)
            if num_as_urgent < self._urgent_slots:
                return Room(self._urgent_slots - num_as_urgent, priority, num_held)
        return Room(limit=0, held=num_held)

    def call_id(self, queue: str) -> str:
        """Name the next claim from a queue; the name stays until that claim was answered."""
        return str(self._num_answered.get(queue, 0))

    def answered(self, queue: str) -> None:
        """Note that the claim was answered.

        Called by the consuming thread only, as is `call_id`.
        """
        self._num_answered[queue] = self._num_answered.get(queue, 0) + 1

    def accept(self, claim: Claim) -> None:
        """Hold a claim."""
        self.queue.failpoints.reach(Failpoint.CLAIMED)
        with self._lock:
            self._claims[claim.lease.tag] = claim

    def reassert(self) -> None:
        """Renew what is held, after a time without the store, lest the next claim take it back.

        What was lost meanwhile is found out by the next regular renewal.
        """
        if leases := self.leases():
            self.queue.renew(leases)

    def held(self, tag: str) -> Claim | None:
        """Return a claim that is held; None for one that was finished, handed back or lost."""
        with self._lock:
            return self._claims.get(tag)

    def leases(self) -> list[Lease]:
        """Return the leases that are held now."""
        with self._lock:
            return [claim.lease for claim in self._claims.values()]

    def forget(self, lease: Lease) -> bool:
        """Hold a claim no longer: it was finished or lost. False when it was not held."""
        with self._lock:
            return self._claims.pop(lease.tag, None) is not None

    def release(self, lease: Lease, *, delay_s: float = 0.0) -> None:
        """Hand a job back without a loss, if it is still held."""
        if self.forget(lease):
            self.queue.release(lease, delay_s=delay_s)

    def settle(self, lease: Lease, *, requeue: bool) -> None:
        """End what Celery dropped before it ran: hand it back, or cancel it because it was revoked.

        A job that was finished is no longer held, and nothing is left to do.
        """
        if requeue:
            self.release(lease)
        elif self.forget(lease):
            result = JobResult.failure(
                JobState.CANCELLED, FailureCode.CANCELLED, "the task was revoked"
            )
            try:
                self.queue.finish(Outcome(lease, result))
            except StaleLease:
                return  # it ended or moved on by itself

    def cancel(self, job_id: str) -> None:
        """Stop the work on a job that was cancelled in the queue."""
        for lease in self.leases():
            if lease.job_id == job_id:
                self._on_cancel(lease)
