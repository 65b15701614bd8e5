"""StopMatcher: where a streamed text has to end.

Owns the text that might still become a stop string. Works as if the text came one character at a
time, so the cut does not depend on how tokens split it: the stop string that is complete first ends
the text, and of several complete at the same character the one that began first. Must not know
tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Text that is certain now, and whether a stop string ended it."""

    text: str
    is_stopped: bool


class StopMatcher:
    """Looks for stop strings in one streamed text."""

    def __init__(self, stop_strings: Iterable[str]) -> None:
        """Take the stop strings; empty ones are no stop strings."""
        self._stop_strings = tuple(filter(None, stop_strings))
        self._held = ""

    def feed(self, text: str) -> StopMatch:
        """Take more text; hold back only an ending that may yet become a stop string."""
        if not self._stop_strings:
            return StopMatch(text, is_stopped=False)
        text = self._held + text
        cut = self._find_cut(text)
        if cut is not None:
            self._held = ""
            return StopMatch(text[:cut], is_stopped=True)
        certain = len(text) - self._count_undecided(text)
        self._held = text[certain:]
        return StopMatch(text[:certain], is_stopped=False)

    def flush(self) -> str:
        """Return what was held back: the text ended without becoming a stop string."""
        held, self._held = self._held, ""
        return held

    def _find_cut(self, text: str) -> int | None:
        """Return where the first completed stop string begins."""
        found = [
            (start + len(stop), start)
            for stop in self._stop_strings
            if (start := text.find(stop)) >= 0
        ]
        return min(found)[1] if found else None

    def _count_undecided(self, text: str) -> int:
        """Measure the longest ending of the text that begins a stop string."""
        longest = max(map(len, self._stop_strings)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop_strings):
                return length
        return 0
