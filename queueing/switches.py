"""Switches: degradations that an operator flips at run time, in one hash that all processes see.

What sheds work is obeyed by the script that admits jobs, at once. What changes how jobs are run is
read by workers, and draining by all processes, about once a second; without a store they go by what
they knew last. Knows no worker and no HTTP. The script obeys the switch's name, so a name never
changes its meaning.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import redis

from queueing import keys
from queueing.errors import StoreUnavailable
from queueing.store import translated_errors

_LOOK_EVERY_S = 1.0


class Switch(StrEnum):
    """What can be flipped."""

    SHED_BULK = "shed_bulk"
    SHED_STANDARD = "shed_standard"
    DRAIN = "drain"
    MAX_TOKENS = "max_tokens"
    REUSE_ANSWERS = "reuse_answers"

    @property
    def meaning(self) -> str:
        """What it does while it is on, in words for operators."""
        return _MEANINGS[self]


_MEANINGS = {
    Switch.SHED_BULK: "bulk jobs are refused, as by a queue that is four fifths full",
    Switch.SHED_STANDARD: "standard jobs are refused",
    Switch.DRAIN: "no process takes or claims anything new; what runs is finished",
    Switch.MAX_TOKENS: "answers end after so many tokens, whatever was asked for",
    Switch.REUSE_ANSWERS: "repeated prompts get the answer of the last so many seconds",
}


@dataclass(frozen=True, slots=True)
class Flip:
    """A change of a switch; None stands for off."""

    switch: Switch
    before: int | None
    now: int | None


class SwitchBoard:
    """Reads and flips the switches of one installation."""

    def __init__(self, client: "redis.Redis", *, prefix: str = "{pm}:") -> None:
        self._client = client
        self._key = keys.SWITCHES.of(prefix)

    def read(self) -> dict[Switch, int]:
        """Return the switches that are on, with their values; raises StoreUnavailable."""
        with translated_errors():
            fields = self._client.hgetall(self._key)
        known = {switch.value: switch for switch in Switch}
        return {known[name]: int(value) for name, value in fields.items() if name in known}

    def flip(self, switch: Switch, value: int | None) -> Flip:
        """Set a switch, or with None turn it off; raises StoreUnavailable."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hget(self._key, switch.value)
            if value is None:
                pipeline.hdel(self._key, switch.value)
            else:
                pipeline.hset(self._key, switch.value, value)
            before, _ = pipeline.execute()
        return Flip(switch, None if before is None else int(before), value)


class SwitchWatch:
    """The switches as one process knows them. Any thread may look and ask."""

    def __init__(self, board: SwitchBoard, on_flip: Callable[[Flip], None]) -> None:
        """Take who is told of each change that is seen."""
        self._board = board
        self._on_flip = on_flip
        self._known: dict[Switch, int] = {}
        self._looking = threading.Lock()
        self._look_at_s = 0.0

    def value(self, switch: Switch) -> int | None:
        """Return a switch's value as it was last seen; None when it is off."""
        return self._known.get(switch)

    def look_when_due(self) -> None:
        """Look again if it is time; a store that is away changes nothing."""
        with suppress(StoreUnavailable):
            self.look_or_fail()

    def look_or_fail(self) -> None:
        """Look again if it is time and nobody else does just now; raises StoreUnavailable."""
        if time.monotonic() < self._look_at_s or not self._looking.acquire(blocking=False):
            return
        try:
            self._look_at_s = time.monotonic() + _LOOK_EVERY_S
            self._tell(self._board.read())
        finally:
            self._looking.release()

    def _tell(self, seen: dict[Switch, int]) -> None:
        before, self._known = self._known, seen
        for switch in Switch:
            if before.get(switch) != seen.get(switch):
                self._on_flip(Flip(switch, before.get(switch), seen.get(switch)))
