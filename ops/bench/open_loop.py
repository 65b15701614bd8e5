"""Latency in an open loop: requests come when they come, and some wait.

python -m ops.bench.open_loop TASK OUTCOME, with settings `dtype`, `rate` (requests a second),
`num_requests` and `seed`. The task's requests come in random order, again and again. A latency
counts from the instant a request came, not from when the engine was free to take it.
"""

import random
import sys
import time
from collections import deque
from dataclasses import dataclass, replace

import torch

from engine.engine import Engine
from ops.bench.arrivals import poisson_arrivals
from ops.bench.ours import as_sequence, load
from ops.bench.task import Task, TokenRequest, run_task


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from a request's arrival to its first token and to its last, in order of finishing.

    max_waiting is the longest the queue ever was: a number that keeps growing means that the rate
    is above capacity and the latencies mean nothing.
    """

    first_token_s: list[float]
    whole_s: list[float]
    max_waiting: int
    makespan_s: float


def measure(task: Task) -> Latencies:
    """Load the engine, then let requests come."""
    seed, num_requests = int(task.settings["seed"]), int(task.settings["num_requests"])
    arrivals = poisson_arrivals(float(task.settings["rate"]), num_requests, seed)
    requests = draw_requests(task.requests, num_requests, seed)
    engine = load(task)
    _serve(engine, deque([(0.0, TokenRequest("warm-up", [1, 2, 3], 4))]))
    return _serve(engine, deque(zip(arrivals, requests, strict=True)))


def draw_requests(requests: list[TokenRequest], num_drawn: int, seed: int) -> list[TokenRequest]:
    """Repeat the requests in a random order, each time under a new id."""
    draw = random.Random(seed)  # noqa: S311 no secret
    drawn: list[TokenRequest] = []
    while len(drawn) < num_drawn:
        drawn += draw.sample(requests, k=len(requests))
    return [replace(request, id=f"{index}") for index, request in enumerate(drawn[:num_drawn])]


def _serve(engine: Engine[torch.Tensor], coming: deque[tuple[float, TokenRequest]]) -> Latencies:
    started = time.perf_counter()
    arrived: dict[str, float] = {}
    firsts: dict[str, float] = {}
    whole_s: list[float] = []
    max_waiting = 0
    while coming or engine.has_work:
        now_s = time.perf_counter() - started
        while coming and coming[0][0] <= now_s:
            arrival_s, request = coming.popleft()
            arrived[request.id] = arrival_s
            engine.add(as_sequence(request))
        if not engine.has_work:
            time.sleep(max(0.0, coming[0][0] - now_s))
            continue
        output = engine.step()
        now_s = time.perf_counter() - started
        max_waiting = max(max_waiting, engine.capacity().waiting)
        for token in output.tokens:
            firsts.setdefault(token.sequence_id, now_s - arrived[token.sequence_id])
        whole_s += [now_s - arrived[done.sequence_id] for done in output.finished]
    return Latencies(list(firsts.values()), whole_s, max_waiting, time.perf_counter() - started)


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
