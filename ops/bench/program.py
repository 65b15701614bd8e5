"""Run one measured program in a process of its own, and judge whether it had the machine.

Owns how tasks and outcomes travel (files of JSON), whose memory is counted, and what happens when
others use the processors: before a run they are waited for, and a run they disturbed is repeated.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from os import wait4, waitstatus_to_exitcode
from pathlib import Path
from typing import Any

import click
import psutil

from ops.bench.busy import MAX_OTHERS_SHARE, others_share, read_cpu, watch_others

_WATCH_S = 2.0
_MAX_TRIES = 3
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Program:
    """A module run by some Python as `python -m MODULE TASK OUTCOME`."""

    python: Path
    module: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program wrote, its peak resident memory, and what others used meanwhile."""

    outcome: dict[str, Any]
    peak_memory_bytes: int
    others_share: float


class BusyMachine(click.ClickException):
    """Others use the processors; a measurement would mean nothing."""

    def __init__(self, share: float) -> None:
        super().__init__(
            f"others use {share:.0%} of the processors, at most {MAX_OTHERS_SHARE:.0%} is allowed;"
            " measure when the machine is idle, or pass --even-if-busy for a table nobody may quote"
        )


class Laboratory:
    """Runs programs one at a time."""

    def __init__(
        self, *, even_if_busy: bool, watch: Callable[[float], float] = watch_others
    ) -> None:
        self.even_if_busy = even_if_busy
        self._watch = watch
        self.worst_others_share = 0.0

    def run(self, program: Program, task: Any) -> Finished:
        """Run a program on a task, a dataclass; raise BusyMachine when it never had the machine."""
        finished = self._run_when_quiet(program, task)
        for _ in range(_MAX_TRIES - 1):
            if self.even_if_busy or finished.others_share <= MAX_OTHERS_SHARE:
                break
            click.echo(f"others used {finished.others_share:.0%} meanwhile; once more", err=True)
            finished = self._run_when_quiet(program, task)
        self._note(finished.others_share)
        return finished

    def _run_when_quiet(self, program: Program, task: Any) -> Finished:
        self._await_quiet()
        before = read_cpu()
        outcome, peak_memory_bytes = _run(program, task)
        share = others_share(before, read_cpu(), psutil.cpu_count() or 1)
        return Finished(outcome, peak_memory_bytes, share)

    def _await_quiet(self) -> None:
        share = self._watch(_WATCH_S)
        for _ in range(_MAX_TRIES - 1):
            if self.even_if_busy or share <= MAX_OTHERS_SHARE:
                break
            share = self._watch(_WATCH_S)
        self._note(share)

    def _note(self, share: float) -> None:
        if share > MAX_OTHERS_SHARE and not self.even_if_busy:
            raise BusyMachine(share)
        self.worst_others_share = max(self.worst_others_share, share)


def _run(program: Program, task: Any) -> tuple[dict[str, Any], int]:
    """Return the outcome and the peak memory of the process, or of its largest child."""
    with tempfile.TemporaryDirectory(prefix="promptmill-bench-") as scratch:
        task_file, outcome_file = Path(scratch, "task.json"), Path(scratch, "outcome.json")
        task_file.write_text(json.dumps(asdict(task)), encoding="utf-8")
        variables = [f"{name}={value}" for name, value in program.variables.items()]
        command = ["env", *variables, str(program.python), "-m", program.module]
        process = subprocess.Popen(
            [*command, str(task_file), str(outcome_file)],
            cwd=_REPOSITORY,
            stdout=subprocess.DEVNULL,
        )
        try:
            _, status, usage = wait4(process.pid, 0)
            process.returncode = waitstatus_to_exitcode(status)
        finally:
            process.kill()  # has no effect on one that has ended
        if process.returncode != 0:
            raise click.ClickException(f"{program.module} ended with {process.returncode}")
        return json.loads(outcome_file.read_text(encoding="utf-8")), usage.ru_maxrss * 1024
