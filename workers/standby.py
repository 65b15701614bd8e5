"""Standby: what the drain switch does to a worker. Claim nothing more, finish what can be finished
in the grace, hand back the rest, and stay up until the switch is off again.

The same as what SIGTERM does (drain.py), but for all workers at once and with a way back. Must not
know the engine or Celery.
"""

import time
from collections.abc import Callable

import structlog

from ops.logs import Event
from queueing.errors import StoreUnavailable
from queueing.job import Lease
from queueing.switches import Flip, Switch, SwitchWatch
from workers.intake import Intake


class Standby:
    """One worker's obedience to the drain switch. One thread calls `obey`, again and again."""

    def __init__(
        self,
        intake: Intake,
        switches: SwitchWatch,
        grace_s: float,
        *,
        tell: Callable[[float], None],
        drop: Callable[[Lease], None],
    ) -> None:
        """Take whom to tell, with 1 when it begins and 0 when it ends, as a gauge is set.

        And how to stop the work on a job that was handed back.
        """
        self._intake = intake
        self._switches = switches
        self._grace_s = grace_s
        self._tell = tell
        self._drop = drop
        self._hand_back_at_s: float | None = None
        self._log = structlog.stdlib.get_logger(__name__)

    def obey(self) -> None:
        """Look at the switch if it is time to, and do what it says."""
        self._switches.look_when_due()
        is_on = self._switches.value(Switch.DRAIN) is not None
        if is_on and self._hand_back_at_s is None:
            self._begin()
        elif not is_on and self._hand_back_at_s is not None:
            self._end()
        elif is_on and time.monotonic() >= (self._hand_back_at_s or 0.0):
            self._hand_back()

    def _begin(self) -> None:
        self._intake.pause()
        self._hand_back_at_s = time.monotonic() + self._grace_s
        self._tell(1)
        self._log.info(Event.WORKER_DRAINING, num_jobs=len(self._intake.leases()))

    def _end(self) -> None:
        self._hand_back_at_s = None
        self._tell(0)
        self._intake.resume()
        self._log.info(Event.WORKER_RESUMED)

    def _hand_back(self) -> None:
        """Release what still runs, without a loss; a store that is away is asked again."""
        for lease in self._intake.leases():
            try:
                self._intake.queue.release(lease)
            except StoreUnavailable:
                return
            if self._intake.forget(lease):
                self._drop(lease)
                self._log.info(Event.JOB_RELEASED, job_id=lease.job_id, fence=lease.fence)


def log_flip(flip: Flip) -> None:
    """Leave a line about a switch that this process has seen flipped."""
    structlog.stdlib.get_logger(__name__).info(
        Event.SWITCH_FLIPPED, switch=flip.switch.value, before=flip.before, now=flip.now
    )
