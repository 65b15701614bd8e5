"""Whether long-lived processes grow: memory and open files of each, sampled over a soak.

Compared are the second quarter and the last one, by their medians: what a process takes in its
first quarter is what it needs to start.
"""

from dataclasses import dataclass
from statistics import median
from time import monotonic

import psutil

_MEMORY_SHARE = 1.05
_MEMORY_SLACK_BYTES = 2 * 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process and its children took up, some seconds after the start."""

    at_s: float
    memory_bytes: int
    num_files: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What a process took up in the second quarter and in the last."""

    name: str
    early_bytes: float
    late_bytes: float
    early_files: float
    late_files: float

    @property
    def has_grown(self) -> bool:
        """Whether the memory is more than a start's noise above what it was."""
        return self.late_bytes > self.early_bytes * _MEMORY_SHARE + _MEMORY_SLACK_BYTES

    def __str__(self) -> str:
        change = self.late_bytes / self.early_bytes - 1
        return (
            f"{self.name}: {self.early_bytes / 2**20:.1f} MiB, then {self.late_bytes / 2**20:.1f}"
            f" ({change:+.1%}); files {self.early_files:g}, then {self.late_files:g}"
        )


class GrowthWatch:
    """Samples processes by name."""

    def __init__(self) -> None:
        self._began_s = monotonic()
        self._samples: dict[str, list[Sample]] = {}

    def look(self, name: str, pid: int) -> None:
        """Take one sample of a process that runs."""
        family = [psutil.Process(pid)]
        family += family[0].children(recursive=True)
        sample = Sample(
            monotonic() - self._began_s,
            sum(process.memory_info().rss for process in family),
            sum(process.num_fds() for process in family),
        )
        self._samples.setdefault(name, []).append(sample)

    def growths(self) -> list[Growth]:
        """Compare the second quarter with the last, for each process."""
        return [_growth(name, samples) for name, samples in self._samples.items()]


def _growth(name: str, samples: list[Sample]) -> Growth:
    quarter_s = samples[-1].at_s / 4
    early = [one for one in samples if quarter_s <= one.at_s <= 2 * quarter_s]
    late = [one for one in samples if one.at_s >= 3 * quarter_s]
    return Growth(
        name,
        median(one.memory_bytes for one in early),
        median(one.memory_bytes for one in late),
        median(one.num_files for one in early),
        median(one.num_files for one in late),
    )
