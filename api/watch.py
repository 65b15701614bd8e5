"""JobWatch: one caller's wait for one job, until it ends, he leaves, or the server does.

Takes one of the waiters' places. Knows no surface and no shape of an answer.
"""

from contextlib import ExitStack, suppress
from time import monotonic
from typing import Self

from api.caller import Caller
from api.drain import DrainingError
from api.waiters import TooManyWaiters, Waiters
from queueing.errors import FailureCode, PromptmillError, RequestError, StoreUnavailable
from queueing.job import JobRecord
from queueing.queue import JobQueue

# How soon a caller is seen to have left: about a step of an engine.
_GLANCE_S = 0.1
# While the store is away the job is looked for this often; after it is back nobody may say so.
_LOOK_AGAIN_S = 0.5
_LONG_S = 3600.0


class WaitOver(PromptmillError):
    """The job did not end in the time that its caller would wait."""


class JobWatch:
    """Wait for a job by `pause` and `look`. Close it in the end, or its place stays taken."""

    def __init__(
        self, queue: JobQueue, waiters: Waiters, tenant: str, job_id: str, caller: Caller
    ) -> None:
        """Take a place; raises TooManyWaiters when there is none."""
        self.job_id = job_id
        self._queue = queue
        self._waiters = waiters
        self._tenant = tenant
        self._caller = caller
        self._places = ExitStack()
        waiter = self._places.enter_context(waiters.waiting_for(job_id))
        if waiter is None and waiters.are_closed:
            raise DrainingError
        if waiter is None:
            raise TooManyWaiters
        self._waiter = waiter
        self._until_s: float | None = None
        self._has_ended = False
        self._is_kept = True

    def __enter__(self) -> Self:
        """Watch until the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def limit(self, limit_s: float, *, is_kept: bool) -> None:
        """Watch no longer than this; a job that is not kept is cancelled when nobody watches."""
        self._until_s = monotonic() + limit_s
        self._is_kept = is_kept

    def look(self) -> JobRecord | None:
        """Return the job as it is; None while the store is away.

        Raises RequestError when the job was erased.
        """
        try:
            record = self._queue.get(self.job_id, self._tenant)
        except StoreUnavailable:
            return None
        if record is None:
            raise RequestError(FailureCode.NOT_FOUND, "the job was deleted while it was awaited")
        self._has_ended = record.state.is_terminal
        return record

    def until_end(self) -> JobRecord:
        """Return the job once it has ended. Raises what `look` and `pause` raise."""
        while True:
            record = self.look()
            if record is not None and record.state.is_terminal:
                return record
            self.pause(_LONG_S if record is not None else _LOOK_AGAIN_S)

    def pause(self, longest_s: float) -> bool:
        """Block until there may be news; False when there was none for so long.

        Raises CallerLeft, DrainingError, and WaitOver.
        """
        end_s = monotonic() + longest_s
        while (left_s := end_s - monotonic()) > 0:
            if self._waiter.wait(min(left_s, _GLANCE_S)):
                return True
            self._caller.check_presence()
            if self._waiters.are_closed:
                raise DrainingError
            if self._until_s is not None and monotonic() > self._until_s:
                raise WaitOver
        return False

    def close(self) -> None:
        """Give the place back, and cancel a job that nobody else awaits."""
        self._places.close()
        if not self._is_kept and not self._has_ended:
            # While the store is away nothing can be cancelled; the job's deadline ends it.
            with suppress(StoreUnavailable):
                self._queue.cancel(self.job_id, self._tenant)
