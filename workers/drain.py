"""Drain: what SIGTERM does to a worker. Claim nothing more, finish what can be finished in the
grace, then stop.

Celery's own warm shutdown closes the consumer first, and with it the events and acknowledgements of
what still runs; here its loop goes on until the work is done. A second signal ends the grace.
"""

import signal
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
        self._log = structlog.stdlib.get_logger(__name__)

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from the moment the worker is ready."""
        worker_ready.connect(self._on_ready, weak=False)

    def _on_ready(self, sender: Any, **_signal: Any) -> None:
        self._hub = sender.hub
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._deadline is not None:
            self._deadline = 0.0
            return
        self._intake.close()
        self._deadline = time.monotonic() + self._grace_s
        self._log.info(Event.WORKER_DRAINING, num_jobs=len(self._intake.leases()))
        self._hub.call_repeatedly(_CHECK_S, self._stop_when_done)

    def _stop_when_done(self) -> None:
        assert self._deadline is not None, "draining has begun"
        if not self._intake.leases() or time.monotonic() >= self._deadline:
            celery_state.should_stop = 0  # type: ignore[assignment]  # the stub says None; it is the exit status
