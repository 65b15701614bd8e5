"""Lanes: how many deliveries may be under way to one receiver, and to those not known to answer.

Keeps receivers that answer free of those that do not. One receiver holds at most a quarter of the
worker's slots; all whose last attempt timed out hold at most half of them together; and an eighth
is kept for receivers whose last attempt was answered. What finds no place is to be handed back to
the queue, to come again at the pace at which places get free. Owns nothing but counts of this
process; must not know HTTP or the queue.
"""

import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

_MIN_WAIT_S = 0.5
_MAX_WAIT_S = 60.0
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Wait:
    """No place now; come again in `seconds`."""

    seconds: float


class Lanes:
    """The places of one worker with `slots` threads. Safe from any thread."""

    def __init__(self, slots: int) -> None:
        self._max_each = max(1, slots // 4)
        self._max_hanging = max(1, slots // 2)
        self._max_unproven = max(1, slots - max(1, slots // 8))
        self._lock = threading.Lock()
        self._receivers: dict[str, _Receiver] = {}
        self._num_inside = dict.fromkeys(_Seen, 0)
        self._shared_pace = _Pace()

    def enter(self, receiver: str) -> Wait | None:
        """Take a place; or say when to come again. Whoever got a place gives it back by leave."""
        with self._lock:
            state = self._receivers.setdefault(receiver, _Receiver())
            if state.num_inside >= self._max_each:
                return state.pace.next_wait(state.last_s / self._max_each)
            if not self._has_room_for(state.seen):
                return self._shared_pace.next_wait(state.last_s / self._max_hanging)
            state.num_inside += 1
            self._num_inside[state.seen] += 1
            return None

    def leave(self, receiver: str, *, duration_s: float, hung: bool) -> None:
        """Give a place back and say how the receiver behaved."""
        with self._lock:
            # Moved to the end: the dict is in the order of last use.
            state = self._receivers[receiver] = self._receivers.pop(receiver)
            self._num_inside[state.seen] -= state.num_inside
            state.num_inside -= 1
            state.last_s = duration_s
            state.seen = _Seen.HANGING if hung else _Seen.ANSWERING
            self._num_inside[state.seen] += state.num_inside
            self._forget_the_oldest()

    def _has_room_for(self, seen: "_Seen") -> bool:
        num_hanging = self._num_inside[_Seen.HANGING]
        has_unproven_room = num_hanging + self._num_inside[_Seen.NEVER] < self._max_unproven
        match seen:
            case _Seen.ANSWERING:
                return True
            case _Seen.NEVER:
                return has_unproven_room
            case _Seen.HANGING:
                return has_unproven_room and num_hanging < self._max_hanging
            case _:
                assert_never(seen)

    def _forget_the_oldest(self) -> None:
        while len(self._receivers) > _MAX_REMEMBERED:
            oldest = next(iter(self._receivers))
            if self._receivers[oldest].num_inside:
                return
            del self._receivers[oldest]


class _Seen(StrEnum):
    NEVER = "never"
    ANSWERING = "answering"
    HANGING = "hanging"


@dataclass(slots=True)
class _Pace:
    """Gives those who have to wait instants one after the other, instead of one for all."""

    next_at: float = 0.0

    def next_wait(self, step_s: float) -> Wait:
        now = time.monotonic()
        self.next_at = max(now + _MIN_WAIT_S, self.next_at + step_s)
        self.next_at = min(self.next_at, now + _MAX_WAIT_S)
        return Wait(self.next_at - now)


@dataclass(slots=True)
class _Receiver:
    num_inside: int = 0
    seen: _Seen = _Seen.NEVER
    last_s: float = 0.1
    pace: _Pace = field(default_factory=_Pace)
