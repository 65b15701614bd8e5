"""Markdown: rows of measurements as tables. Owns every number's format; measures nothing."""

from collections.abc import Iterable, Sequence

from ops.bench.bench import Row
from ops.bench.estimates import Interval, percentile


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay cells out as a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def comparison_cells(row: Row) -> list[str]:
    """Return what a burst came to: COMPARISON_HEAD."""
    rates = [run.outcome.output_rate for run in row.runs]
    typical = row.typical
    latencies_s = typical.outcome.latencies_s
    return [
        row.name,
        f"{row.output_rate:.0f} ({min(rates):.0f}-{max(rates):.0f}, {len(rates)})",
        f"{typical.outcome.request_rate:.2f}",
        f"{typical.outcome.makespan_s:.1f}",
        f"{percentile(latencies_s, 50):.1f} / {percentile(latencies_s, 99):.1f}",
        f"{max(run.peak_memory_bytes for run in row.runs) / 2**20:.0f}",
    ]


COMPARISON_HEAD = (
    "engine",
    "output tok/s, median (range, runs)",
    "requests/s",
    "makespan s",
    "p50 / p99 s in the burst",
    "peak MiB",
)


def interval(estimated: Interval) -> str:
    """Write an estimate with its bounds."""
    return f"{estimated.estimate:.2f} ({estimated.low:.2f}-{estimated.high:.2f})"


def milliseconds(seconds: float) -> str:
    """Write a short duration."""
    return f"{seconds * 1e3:.2f}"
