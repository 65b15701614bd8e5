"""Time as the queue sees it.

Instants that two machines compare come from Redis; tests drive their own clock.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Says the instant that scripts use instead of Redis TIME."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class ManualClock:
    """A clock that stands still until it is advanced; for tests and simulations."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Return the instant it was advanced to."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move on by `ms` milliseconds."""
        self._now_ms += ms


class SystemClock:
    """This machine's clock, for instants that are told to outsiders; never compared with another
    machine's.
    """

    def now_ms(self) -> int:
        """Return the wall clock's time."""
        return time.time_ns() // 1_000_000
