"""A closed loop: as many requests in flight as the task allows, the next one as soon as one ends.

The one client all engines that are stepped by their caller share, ours included. Imports the
standard library alone.
"""

import time
from dataclasses import dataclass
from typing import Protocol

from ops.bench.task import Outcome, Task, TokenRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request and the tokens made for it."""

    id: str
    token_ids: list[int]


class SteppedEngine(Protocol):
    """An engine with a continuous batch that its caller steps."""

    version: str

    def add(self, request: TokenRequest) -> None: ...

    def step(self) -> list[Answer]: ...


def run_closed_loop(engine: SteppedEngine, task: Task) -> Outcome:
    """Warm the engine up, then run all requests."""
    _answer_all(engine, [TokenRequest("warm-up", [1, 2, 3], 4)], 1)
    return _answer_all(engine, task.requests, task.in_flight)


def _answer_all(engine: SteppedEngine, requests: list[TokenRequest], in_flight: int) -> Outcome:
    started = time.perf_counter()
    waiting = list(reversed(requests))
    answers: dict[str, list[int]] = {}
    latencies_s: list[float] = []
    num_running = 0
    while waiting or num_running:
        while waiting and num_running < in_flight:
            engine.add(waiting.pop())
            num_running += 1
        for answer in engine.step():
            answers[answer.id] = answer.token_ids
            latencies_s.append(time.perf_counter() - started)
            num_running -= 1
    return Outcome(engine.version, answers, latencies_s, time.perf_counter() - started)
