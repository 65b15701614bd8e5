"""Waiters: requests that block until a job ends, woken by one listener per process.

The listener hears the id of every job that ends on one pub/sub channel. Messages are lost while the
store is away; so after each (re)subscription everybody is woken once to look for himself, and goes
on waiting if his job has not ended. Nobody asks the store while he waits, so waiting survives its
restart. Knows nothing of HTTP; a waiter beyond the limit is turned away at once, so that the other
threads stay free for submits.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread

import redis

from queueing.errors import PromptmillError

_LOOK_S = 0.5
_RECONNECT_S = 0.25


class TooManyWaiters(PromptmillError):
    """As many requests block as may: this one is turned away."""


class Waiter:
    """One blocked request. Woken once or more; each time it looks at its job itself."""

    def __init__(self) -> None:
        self._woken = Event()

    def wait(self, timeout_s: float) -> bool:
        """Block until woken; False when the time ran out first."""
        if not self._woken.wait(max(0.0, timeout_s)):
            return False  # nothing is cleared: a wake that comes just now is for the next look
        self._woken.clear()
        return True

    def wake(self) -> None:
        """Let it look. Any thread."""
        self._woken.set()


class Waiters:
    """All waiters of this process; the listener begins with the first one and ends at close."""

    def __init__(self, client: "redis.Redis", channels: Sequence[str], max_waiters: int) -> None:
        """Take the channels that say which jobs there is news of."""
        self._client = client
        self._channels = tuple(channels)
        self._max_waiters = max_waiters
        self._lock = Lock()
        self._waiters: defaultdict[str, list[Waiter]] = defaultdict(list)
        self._num_waiters = 0
        self._listener: Thread | None = None
        self._closed = Event()

    @contextmanager
    def waiting_for(self, *job_ids: str) -> Iterator[Waiter | None]:
        """Register a waiter for a block's time; None when there are too many, or after close.

        Any of the jobs wakes it. Look at them after this begins: what ended before is not announced
        again.
        """
        waiter = self._enter(job_ids)
        try:
            yield waiter
        finally:
            if waiter is not None:
                self._leave(job_ids, waiter)

    @property
    def are_closed(self) -> bool:
        """True once nobody may wait any more."""
        return self._closed.is_set()

    def close(self) -> None:
        """Wake everybody for good and let the listener end."""
        self._closed.set()
        self._wake_all()

    def join(self) -> None:
        """Return when the listener has ended; close first."""
        if self._listener is not None:
            self._listener.join()

    def _enter(self, job_ids: Sequence[str]) -> Waiter | None:
        with self._lock:
            if self._num_waiters >= self._max_waiters or self._closed.is_set():
                return None
            if self._listener is None:
                self._listener = Thread(target=self._listen, name="ended-listener", daemon=True)
                self._listener.start()
            waiter = Waiter()
            for job_id in job_ids:
                self._waiters[job_id].append(waiter)
            self._num_waiters += 1
            return waiter

    def _leave(self, job_ids: Sequence[str], waiter: Waiter) -> None:
        with self._lock:
            for job_id in job_ids:
                self._waiters[job_id].remove(waiter)
                if not self._waiters[job_id]:
                    del self._waiters[job_id]
            self._num_waiters -= 1

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._hear()
            except (redis.ConnectionError, redis.TimeoutError):
                self._closed.wait(_RECONNECT_S)

    def _hear(self) -> None:
        """Subscribe and wake whom it concerns until closed; raises when the connection is lost."""
        with self._client.pubsub() as subscription:  # type: ignore[no-untyped-call]
            subscription.subscribe(*self._channels)
            while not self._closed.is_set():
                message = subscription.get_message(timeout=_LOOK_S)
                if message is None:
                    continue
                if message["type"] == "subscribe" and message["channel"] == self._channels[-1]:
                    self._wake_all()
                elif message["type"] == "message":
                    self._wake(message["data"].split())

    def _wake(self, job_ids: list[str]) -> None:
        with self._lock:
            for job_id in job_ids:
                for waiter in self._waiters.get(job_id, ()):
                    waiter.wake()

    def _wake_all(self) -> None:
        with self._lock:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    waiter.wake()
