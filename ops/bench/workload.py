"""The standard workload: 96 prompts of mixed length, each with a fixed number of tokens to make.

Owns the requests as text. Knows no engine and no tokenizer.
"""

import json
from dataclasses import dataclass
from pathlib import Path

WORKLOAD = Path(__file__).parent / "workload.jsonl"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt; every engine makes exactly max_tokens, so that all do the same work."""

    id: str
    prompt: str
    max_tokens: int


def read_workload(limit: int | None = None) -> list[Request]:
    """Read the requests, or only the first ones."""
    lines = WORKLOAD.read_text(encoding="utf-8").splitlines()[:limit]
    items = [json.loads(line) for line in lines]
    return [Request(str(item["id"]), item["prompt"], item["max_tokens"]) for item in items]
