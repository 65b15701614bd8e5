"""A system prompt shared by all requests, with and without the prefix cache.

python -m ops.bench.shared_prefix TASK OUTCOME, with settings `dtype`, `prefix_caching` (on or off)
and `at_once` (how many requests come together). What counts is the time to the first token.
"""

import sys
import time
from dataclasses import dataclass

import torch

from engine.engine import Engine
from ops.bench.ours import as_sequence, load
from ops.bench.task import Task, TokenRequest, run_task

NUM_SHARED = 400
NUM_REQUESTS = 64
_NUM_OWN = 16
_MAX_TOKENS = 8


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Seconds from a request's arrival to its first token, and prompt tokens found in the cache."""

    first_token_s: list[float]
    num_cached_tokens: int


def shared_prefix_requests(source: list[TokenRequest]) -> list[TokenRequest]:
    """Make requests that begin alike and end differently, of the source's tokens."""
    tokens = [token_id for request in source for token_id in request.prompt_ids]
    shared, rest = tokens[:NUM_SHARED], tokens[NUM_SHARED:]
    return [
        TokenRequest(
            f"{index}", shared + rest[index * _NUM_OWN : (index + 1) * _NUM_OWN], _MAX_TOKENS
        )
        for index in range(NUM_REQUESTS)
    ]


def measure(task: Task) -> FirstTokens:
    """Warm up, then run the requests in groups, one group after the other."""
    engine = load(task, prefix_caching=task.settings["prefix_caching"] == "on")
    _run_group(engine, [TokenRequest("warm-up", [1, 2, 3], 4)])
    at_once = int(task.settings["at_once"])
    groups = [
        task.requests[start : start + at_once] for start in range(0, len(task.requests), at_once)
    ]
    measured = [_run_group(engine, group) for group in groups]
    return FirstTokens(
        [seconds for group in measured for seconds in group.first_token_s],
        sum(group.num_cached_tokens for group in measured),
    )


def _run_group(engine: Engine[torch.Tensor], requests: list[TokenRequest]) -> FirstTokens:
    started = time.perf_counter()
    for request in requests:
        engine.add(as_sequence(request))
    firsts: dict[str, float] = {}
    num_cached_tokens = 0
    while engine.has_work:
        output = engine.step()
        num_cached_tokens += output.num_cached_tokens
        for token in output.tokens:
            firsts.setdefault(token.sequence_id, time.perf_counter() - started)
    return FirstTokens(list(firsts.values()), num_cached_tokens)


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
