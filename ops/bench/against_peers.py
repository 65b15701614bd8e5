"""`make bench-peers`, `make bench-curve`: our engine beside others on the same workload.

Owns the table and the curve. All engines get the same token ids, make the same number of tokens
greedily and have as many requests in flight and as much cache.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import click

from ops.bench.bench import Bench, Row
from ops.bench.concurrency import CONCURRENCIES, requests_for
from ops.bench.equality import count_equal, full_precision_answers
from ops.bench.peers import PLOT, Contender, ours, ours_int8
from ops.bench.tables import COMPARISON_HEAD, comparison_cells, table
from ops.bench.venvs import ensure_environment

_OURS = ("bfloat16", "float32")


def peers_section(bench: Bench, peers: list[Contender], repeats: int) -> str:
    """Measure every engine in turn; return the table."""
    reference = full_precision_answers(bench)
    contenders = [*(ours(dtype) for dtype in _OURS), ours_int8(), *peers]
    rows = bench.compare(contenders, repeats)
    limits = {dtype: _limit_rates(bench, dtype)[CONCURRENCIES.index(32)] for dtype in _OURS}
    described = [
        [*comparison_cells(row), _part_of_limit(row, contender, limits), _equal(row, reference)]
        for row, contender in zip(rows, contenders, strict=True)
    ]
    versions = ", ".join(sorted({row.typical.outcome.version for row in rows}))
    return "\n\n".join(
        [
            table([*COMPARISON_HEAD, "of the limit", "answers equal to fp32"], described),
            f"Limit: {', '.join(f'{dtype} {rate:.0f} tok/s' for dtype, rate in limits.items())}."
            f" Versions: {versions}.",
        ]
    )


def curve_section(bench: Bench, peers: list[Contender], plot: Path) -> str:
    """Measure throughput at each concurrency; draw it and return it as a table too."""
    curves = {"limit (matrix products alone)": _limit_rates(bench, "bfloat16")}
    for contender in (ours("bfloat16"), *peers):
        bench.prepare(contender)
    for contender in (replace(ours("bfloat16"), name="promptmill bf16"), *peers):
        curves[contender.name] = [_rate_at(bench, contender, level) for level in CONCURRENCIES]
    _draw(bench, curves, plot)
    rows = [[name, *(f"{rate:.0f}" for rate in rates)] for name, rates in curves.items()]
    picture = f"![Output tokens per second against requests in flight]({plot.name})"
    return f"{picture}\n\n{table(['output tok/s at', *map(str, CONCURRENCIES)], rows)}"


def _rate_at(bench: Bench, contender: Contender, in_flight: int) -> float:
    click.echo(f"{contender.name}, {in_flight} in flight", err=True)
    requests = requests_for(bench.requests, in_flight)
    return bench.run(replace(contender, in_flight=in_flight), requests).outcome.output_rate


def _limit_rates(bench: Bench, dtype: str) -> list[float]:
    found = bench.measure_ours("limit", {"dtype": dtype}, bench.requests, in_flight=1)
    rates: list[float] = found["output_rates"]
    return rates


def _part_of_limit(row: Row, contender: Contender, limits: dict[str, float]) -> str:
    if contender.computes_in is None:
        return ""
    return f"{row.output_rate / limits[contender.computes_in]:.0%}"


def _equal(row: Row, reference: dict[str, list[int]]) -> str:
    answers = row.typical.outcome.answers
    return f"{count_equal(answers, reference)} of {len(answers)}"


def _draw(bench: Bench, curves: dict[str, list[float]], plot: Path) -> None:
    python = ensure_environment(PLOT, bench.folder)
    points = json.dumps({"in_flight": CONCURRENCIES, "curves": curves})
    command = [str(python), "-m", "ops.bench.plot", str(plot)]
    subprocess.run(command, input=points, text=True, check=True)
