"""Section: what one part of the device check found. Owns the form; measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Section:
    """A table for readers, the same as numbers, and what is wrong."""

    title: str
    head: list[str]
    rows: list[list[str]]
    numbers: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Write the section as Markdown."""
        lines: list[Sequence[str]] = [self.head, ["---"] * len(self.head), *self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        failures = "".join(f"\n- FAILED: {failure}" for failure in self.failures)
        return f"## {self.title}\n\n{table}\n{failures}"
