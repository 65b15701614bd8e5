"""Task and Outcome: what a program that runs one engine once is given, and what comes of it.

Each engine runs in a process and mostly in a virtual environment of its own, so both are files of
JSON. Prompts are token ids: no engine's tokenizer is measured, and all get the same tokens.
Imports the standard library alone, because other environments hold nothing of ours.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One prompt as token ids; exactly max_tokens are to be made, greedily."""

    id: str
    prompt_ids: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Task:
    """What to run. `settings` is what distinguishes one row of an engine from another."""

    model: str
    requests: list[TokenRequest]
    in_flight: int
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a burst. Latencies count from its start, in order of finishing."""

    version: str
    answers: dict[str, list[int]]
    latencies_s: list[float]
    makespan_s: float

    @property
    def output_rate(self) -> float:
        """Return output tokens per second."""
        return sum(map(len, self.answers.values())) / self.makespan_s

    @property
    def request_rate(self) -> float:
        """Return finished requests per second."""
        return len(self.answers) / self.makespan_s


def run_task(arguments: list[str], work: Callable[[Task], Any]) -> None:
    """Be a program: read the file of a task, do it, write the file of its outcome, a dataclass."""
    task_file, outcome_file = map(Path, arguments)
    outcome = work(_task_from(json.loads(task_file.read_text(encoding="utf-8"))))
    outcome_file.write_text(json.dumps(asdict(outcome)), encoding="utf-8")


def _task_from(payload: dict[str, Any]) -> Task:
    requests = [TokenRequest(**request) for request in payload["requests"]]
    return Task(**{**payload, "requests": requests})
