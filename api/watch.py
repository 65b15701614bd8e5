"""JobWatch and GroupWatch: one caller's wait for a job, or for several that make one answer, until
they end, he leaves, or the server does.

Either takes one of the waiters' places. Knows no surface and no shape of an answer.
"""

from collections import deque
from collections.abc import Iterator, Sequence
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
# So many jobs of a group are looked at together.
_WINDOW = 32


class WaitOver(PromptmillError):
    """The job did not end in the time that its caller would wait."""


class Place:
    """One of the waiters' places, taken for news of some jobs. Give it back in the end."""

    def __init__(self, waiters: Waiters, job_ids: Sequence[str], caller: Caller) -> None:
        """Take it; raises TooManyWaiters when there is none, DrainingError when waiting ends."""
        self._waiters = waiters
        self._caller = caller
        self._taken = ExitStack()
        waiter = self._taken.enter_context(waiters.waiting_for(*job_ids))
        if waiter is None and waiters.are_closed:
            raise DrainingError
        if waiter is None:
            raise TooManyWaiters
        self._waiter = waiter
        self._until_s: float | None = None

    def limit(self, limit_s: float) -> None:
        """Stay no longer than this."""
        self._until_s = monotonic() + limit_s

    def pause(self, longest_s: float) -> bool:
        """Block until there may be news; False when there was none for so long.

        Raises CallerLeft, DrainingError, and WaitOver.
        """
        end_s = monotonic() + longest_s
        while (left_s := end_s - monotonic()) > 0:
            # Before the wait: where news comes thick and fast, there is no end to it.
            self._caller.check_presence()
            if self._until_s is not None and monotonic() > self._until_s:
                raise WaitOver
            if self._waiter.wait(min(left_s, _GLANCE_S)):
                return True
            if self._waiters.are_closed:
                raise DrainingError
        return False

    def give_back(self) -> None:
        """Let somebody else have it."""
        self._taken.close()


class JobWatch:
    """Wait for a job by `pause` and `look`. Close it in the end, or its place stays taken."""

    def __init__(
        self, queue: JobQueue, waiters: Waiters, tenant: str, job_id: str, caller: Caller
    ) -> None:
        """Take a place; raises what Place does."""
        self.job_id = job_id
        self._queue = queue
        self._tenant = tenant
        self._place = Place(waiters, [job_id], caller)
        self._has_ended = False
        self._is_kept = True

    def __enter__(self) -> Self:
        """Watch until the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def limit(self, limit_s: float, *, is_kept: bool) -> None:
        """Watch no longer than this; a job that is not kept is cancelled when nobody watches."""
        self._place.limit(limit_s)
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
            raise _deleted()
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
        return self._place.pause(longest_s)

    def close(self) -> None:
        """Give the place back, and cancel a job that nobody else awaits."""
        self._place.give_back()
        if not self._is_kept and not self._has_ended:
            # While the store is away nothing can be cancelled; the job's deadline ends it.
            with suppress(StoreUnavailable):
                self._queue.cancel(self.job_id, self._tenant)


class GroupWatch:
    """Wait for several jobs, in one place. Close it in the end."""

    def __init__(
        self,
        queue: JobQueue,
        waiters: Waiters,
        tenant: str,
        job_ids: Sequence[str],
        caller: Caller,
    ) -> None:
        """Take a place; raises what Place does."""
        self._queue = queue
        self._tenant = tenant
        self._place = Place(waiters, job_ids, caller)
        self._pending = deque(job_ids)
        self._is_kept = True

    def __enter__(self) -> Self:
        """Watch until the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def limit(self, limit_s: float, *, is_kept: bool) -> None:
        """Watch no longer than this; jobs that are not kept are cancelled when nobody watches."""
        self._place.limit(limit_s)
        self._is_kept = is_kept

    def records(self) -> Iterator[JobRecord]:
        """Yield the jobs in their order, each once it and those before have ended.

        Raises RequestError when one was erased, and what Place.pause raises.
        """
        while self._pending:
            try:
                found = self._queue.get_many(list(self._pending)[:_WINDOW], self._tenant)
            except StoreUnavailable:
                self._place.pause(_LOOK_AGAIN_S)
                continue
            for record in found:
                if record is None:
                    raise _deleted()
                if not record.state.is_terminal:
                    self._place.pause(_LONG_S)
                    break
                self._pending.popleft()
                yield record

    def close(self) -> None:
        """Give the place back, and cancel the jobs that nobody else awaits."""
        self._place.give_back()
        if not self._is_kept:
            # While the store is away nothing can be cancelled; the jobs' deadline ends them.
            with suppress(StoreUnavailable):
                for job_id in self._pending:
                    self._queue.cancel(job_id, self._tenant)


def _deleted() -> RequestError:
    return RequestError(FailureCode.NOT_FOUND, "the job was deleted while it was awaited")
