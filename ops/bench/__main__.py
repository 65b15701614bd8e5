"""`make bench`: our engine at one and at 32 in flight beside transformers, in one run.

Every engine runs in a process of its own, the runs of all engines interleaved, and medians are
reported. Two cores shared with anything else measure nothing, so a busy machine is refused.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import psutil

from ops.bench.workload import Measurement

_BUSY_SHARE = 0.05
_OURS_ALONE = "promptmill, one in flight"
_OURS = "promptmill, 32 in flight"
_THEIRS = "transformers, one at a time"


@dataclass(frozen=True, slots=True)
class Row:
    """One engine's runs."""

    name: str
    runs: tuple[Measurement, ...]

    @property
    def output_rate(self) -> float:
        """Return the median of output tokens per second."""
        return median(run.output_rate for run in self.runs)


@click.command()
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    default=Path(".cache/models/SmolLM2-135M-Instruct"),
    show_default=True,
)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16")
@click.option("--repeats", default=3, show_default=True, help="Runs of each engine.")
@click.option("--limit", type=int, help="Only the first requests of the workload.")
@click.option("--skip-transformers", is_flag=True, help="Only our own engine.")
@click.option("--even-if-busy", is_flag=True, help="Measure on a busy machine all the same.")
def main(
    model: Path,
    dtype: str,
    repeats: int,
    limit: int | None,
    *,
    skip_transformers: bool,
    even_if_busy: bool,
) -> None:
    """Measure, then print the table and the ratios."""
    busy_share = psutil.cpu_percent(interval=2.0) / 100
    if busy_share > _BUSY_SHARE and not even_if_busy:
        raise click.ClickException(f"others use {busy_share:.0%} of the CPU; measure when idle")
    shared = ["--model", str(model), "--dtype", dtype, *(["--limit", str(limit)] if limit else [])]
    commands = {
        _OURS: ["ops.bench.ours", "--in-flight", "32", *shared],
        _OURS_ALONE: ["ops.bench.ours", "--in-flight", "1", *shared],
        _THEIRS: ["ops.bench.transformers_alone", *shared],
    }
    if skip_transformers:
        del commands[_THEIRS]
    runs: dict[str, list[Measurement]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            runs[name].append(_measure(command))
    rows = {name: Row(name, tuple(measured)) for name, measured in runs.items()}
    _print_table(list(rows.values()))
    _print_ratios(rows)
    _print_shares(_measure([*commands[_OURS], "--profile"]))


def _measure(command: list[str]) -> Measurement:
    done = subprocess.run(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, check=True, text=True
    )
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def _print_table(rows: list[Row]) -> None:
    click.echo("| engine | requests/s | output tok/s | makespan s | p50 / p99 s | peak MiB |")
    click.echo("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        run = sorted(row.runs, key=lambda run: run.output_rate)[len(row.runs) // 2]
        rates = [run.output_rate for run in row.runs]
        click.echo(
            f"| {row.name} | {run.request_rate:.2f}"
            f" | {row.output_rate:.0f} ({min(rates):.0f}-{max(rates):.0f})"
            f" | {run.makespan_s:.1f} | {run.latency_p50_s:.1f} / {run.latency_p99_s:.1f}"
            f" | {run.peak_memory_bytes / 2**20:.0f} |"
        )


def _print_ratios(rows: dict[str, Row]) -> None:
    ours, alone = rows[_OURS], rows[_OURS_ALONE]
    click.echo(f"32 in flight over one: {ours.output_rate / alone.output_rate:.2f}")
    if _THEIRS in rows:
        theirs = rows[_THEIRS]
        click.echo(f"32 in flight over transformers: {ours.output_rate / theirs.output_rate:.2f}")
        click.echo(f"one over transformers: {alone.output_rate / theirs.output_rate:.2f}")
        answers = theirs.runs[0].answers
        equal = sum(ours.runs[0].answers[name] == answer for name, answer in answers.items())
        click.echo(f"answers equal to transformers': {equal} of {len(answers)}")
    equal = sum(alone.runs[0].answers[name] == ids for name, ids in ours.runs[0].answers.items())
    click.echo(f"answers equal alone and in a batch: {equal} of {len(ours.runs[0].answers)}")


def _print_shares(profiled: Measurement) -> None:
    click.echo("where a step's time goes, 32 in flight:")
    for part, share in profiled.step_shares.items():
        click.echo(f"  {part}: {share:.0%}")


if __name__ == "__main__":
    main()
