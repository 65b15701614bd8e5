"""Drain: what SIGTERM does to a worker. Claim nothing more, finish what can be finished in the
grace, then stop.

Celery's own warm shutdown closes the consumer first, and with it the events and acknowledgements of
what still runs; here its loop goes on until the work is done. A second signal ends the grace.

A thread decides when to stop, not the loop: while the store is away Celery's loop stands still, in
a retry that only looks whether it should stop.
"""

import signal
import threading
import time
from types import FrameType
from typing import Any

import structlog
from celery.signals import worker_ready
from celery.worker import state as celery_state

from ops.logs import Event
from workers.intake import Intake

_CHECK_S = 0.05


class Drain:
    """Stops one worker gracefully.

    Its handlers take the place of Celery's once the worker is ready.
    """

    def __init__(self, intake: Intake, grace_s: float) -> None:
        self._intake = intake
        self._grace_s = grace_s
        self._deadline: float | None = None
        self._begun = threading.Event()
        self._log = structlog.stdlib.get_logger(__name__)

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from the moment the worker is ready."""
        worker_ready.connect(self._on_ready, weak=False)

    def _on_ready(self, sender: Any, **_signal: Any) -> None:
        self._hub = sender.hub
        threading.Thread(target=self._stop_when_done, name="drain", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        # The main thread may hold any lock just now, the intake's for one: take none.
        if self._deadline is not None:
            self._deadline = 0.0
            return
        self._intake.close()
        self._deadline = time.monotonic() + self._grace_s
        self._begun.set()
        # Celery's loop looks whether it should stop each time it wakes.
        self._hub.call_repeatedly(_CHECK_S, _nothing)

    def _stop_when_done(self) -> None:
        self._begun.wait()
        assert self._deadline is not None, "draining has begun"
        self._log.info(Event.WORKER_DRAINING, num_jobs=len(self._intake.leases()))
        while self._intake.leases() and time.monotonic() < self._deadline:
            time.sleep(_CHECK_S)
        celery_state.should_stop = 0  # type: ignore[assignment]  # the stub says None; it is the exit status


def _nothing() -> None:
    """Be a reason to wake."""
