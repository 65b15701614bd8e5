"""Bench: runs contenders on the workload, each in its process, and keeps to one model.

Owns where environments lie and how a contender becomes a program. Knows no section of the report.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from engine.tokenizer import Tokenizer
from ops.bench.peers import Contender
from ops.bench.program import Laboratory, Program
from ops.bench.task import Outcome, Task, TokenRequest
from ops.bench.venvs import ensure_environment
from ops.bench.workload import read_workload


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run, and how much memory its process had at most."""

    outcome: Outcome
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """All runs of one contender."""

    name: str
    runs: tuple[Run, ...]

    @property
    def output_rate(self) -> float:
        """Return the median of output tokens per second."""
        return median(run.outcome.output_rate for run in self.runs)

    @property
    def typical(self) -> Run:
        """Return the run whose rate is the median."""
        ordered = sorted(self.runs, key=lambda run: run.outcome.output_rate)
        return ordered[len(ordered) // 2]


class Bench:
    """One model, one workload, one machine."""

    def __init__(self, laboratory: Laboratory, model: Path, limit: int | None) -> None:
        """Take the first `limit` requests, or all: only numbers of the whole may be quoted."""
        self.laboratory = laboratory
        self.is_quotable = limit is None and not laboratory.even_if_busy
        self.model = model.resolve()
        self.folder = Path(".cache/bench").resolve()
        self.requests = tokenised(model, limit)

    def run(self, contender: Contender, requests: list[TokenRequest]) -> Run:
        """Run a contender once, in the environment it needs, which may have to be made."""
        python = Path(sys.executable)
        if contender.environment is not None:
            python = ensure_environment(contender.environment, self.folder)
        program = Program(python, contender.module, contender.variables)
        chosen = requests[:: contender.stride]
        model = str(self._model_of(contender))
        task = Task(model, chosen, contender.in_flight, dict(contender.settings))
        finished = self.laboratory.run(program, task)
        return Run(Outcome(**finished.outcome), finished.peak_memory_bytes)

    def compare(self, contenders: Sequence[Contender], repeats: int) -> list[Row]:
        """Run all contenders in turn, again and again, so that drift falls on all alike."""
        for contender in contenders:
            self.prepare(contender)
        runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
        for number in range(repeats):
            for contender in contenders:
                click.echo(f"run {number + 1} of {repeats}: {contender.name}", err=True)
                runs[contender.name].append(self.run(contender, self.requests))
        return [Row(name, tuple(measured)) for name, measured in runs.items()]

    def prepare(self, contender: Contender) -> None:
        """Run one request, so that no run measured has to install, convert or compile anything."""
        if contender.environment is not None:
            click.echo(f"preparing {contender.name}", err=True)
            self.run(contender, self.requests[:1])

    def measure_ours(
        self, module: str, settings: dict[str, str], requests: list[TokenRequest], in_flight: int
    ) -> dict[str, Any]:
        """Run a program of the bench on our engine; return what it wrote."""
        click.echo(f"{module}: {settings}", err=True)
        program = Program(Path(sys.executable), f"ops.bench.{module}")
        task = Task(str(self.model), requests, in_flight, settings)
        return self.laboratory.run(program, task).outcome

    def _model_of(self, contender: Contender) -> Path:
        """Return the model's folder, or that of its quantised copy, which is made once."""
        if contender.scheme is None:
            return self.model
        copy = self.folder / f"{self.model.name}-{contender.scheme}"
        if not copy.exists():
            quantize = [sys.executable, "-m", "ops.cli", "quantize", str(self.model)]
            subprocess.run(
                [*quantize, "--scheme", contender.scheme, "--out", str(copy)], check=True
            )
        return copy


def tokenised(model: Path, limit: int | None) -> list[TokenRequest]:
    """Read the workload as the model's tokens, or only its first requests."""
    tokenizer = Tokenizer.load(model)
    return [
        TokenRequest(request.id, tokenizer.encode(request.prompt), request.max_tokens)
        for request in read_workload(limit)
    ]
