"""LeaseRenewer: keeps the claims of one process alive while its work makes progress.

Must not know what the work is. A process that hangs stops renewing, so its jobs go to somebody
else.
"""

import threading
import time
from collections.abc import Callable

from queueing.errors import StoreUnavailable
from queueing.job import Lease
from workers.intake import Intake
from workers.standby import Standby


class LeaseRenewer:
    """Renews every held lease each `renew_s` seconds. One thread calls it."""

    def __init__(
        self,
        intake: Intake,
        renew_s: float,
        *,
        on_lost: Callable[[Lease], None],
        progress: Callable[[], int] | None = None,
    ) -> None:
        """Take what to do with a lost lease, and a counter that has to move for a renewal."""
        self._intake = intake
        self._renew_s = renew_s
        self._on_lost = on_lost
        self._progress = progress
        self._seen: int | None = None
        self._moved = time.monotonic()
        self._due = time.monotonic() + renew_s

    def stalled_s(self) -> float:
        """Return for how long the work has made no progress."""
        now = time.monotonic()
        progress = self._progress() if self._progress is not None else None
        if progress is None or progress != self._seen:
            self._seen = progress
            self._moved = now
        return now - self._moved

    def renew_when_due(self) -> None:
        """Renew if it is time; a store that is away is asked again a second later."""
        now = time.monotonic()
        if now < self._due:
            return
        if self.stalled_s() > 2 * self._renew_s:
            return
        leases = self._intake.leases()
        try:
            lost = self._intake.queue.renew(leases) if leases else set()
        except StoreUnavailable:
            self._due = now + 1.0
            return
        self._due = now + self._renew_s
        for lease in leases:
            if lease.job_id in lost and self._intake.forget(lease):
                self._on_lost(lease)


class LeaseKeeper:
    """A thread that keeps the leases of a worker whose work runs in other threads: renews them, and
    hands them back when the worker stands by.
    """

    def __init__(self, renewer: LeaseRenewer, standby: Standby) -> None:
        self._renewer = renewer
        self._standby = standby
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        """Begin; the switch has been looked at when this returns, so before anything is claimed."""
        self._standby.obey()
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing; what is still held runs out."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.2):
            self._renewer.renew_when_due()
            self._standby.obey()
