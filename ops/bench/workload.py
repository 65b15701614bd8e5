"""The standard workload: 96 prompts of mixed length, each with a fixed number of tokens to make.

Owns the requests and what is measured about them, whoever answers. Knows no engine.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

WORKLOAD = Path(__file__).parent / "workload.jsonl"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt; every engine makes exactly max_tokens, so that all do the same work."""

    id: str
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run of one engine came to. Latencies count from the start of the burst."""

    name: str
    num_requests: int
    num_output_tokens: int
    makespan_s: float
    latency_p50_s: float
    latency_p99_s: float
    peak_memory_bytes: int
    answers: dict[str, list[int]]
    step_shares: dict[str, float]

    @property
    def output_rate(self) -> float:
        """Return output tokens per second."""
        return self.num_output_tokens / self.makespan_s

    @property
    def request_rate(self) -> float:
        """Return finished requests per second."""
        return self.num_requests / self.makespan_s


def read_workload(limit: int | None = None) -> list[Request]:
    """Read the requests, or only the first ones."""
    lines = WORKLOAD.read_text(encoding="utf-8").splitlines()[:limit]
    items = [json.loads(line) for line in lines]
    return [Request(str(item["id"]), item["prompt"], item["max_tokens"]) for item in items]


def percentile(values: Iterable[float], percent: int) -> float:
    """Return a percentile; of a single value, that value."""
    ordered = sorted(values)
    return quantiles(ordered, n=100)[percent - 1] if len(ordered) > 1 else ordered[0]
