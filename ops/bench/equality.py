"""How often two engines answered alike, token for token.

The answers in full precision are transformers' own, made once and kept: no engine that is compared
is its own judge.
"""

import hashlib
import json
from pathlib import Path

from ops.bench.bench import Bench
from ops.bench.peers import TRANSFORMERS, Contender


def count_equal(answers: dict[str, list[int]], reference: dict[str, list[int]]) -> int:
    """Count the answers that are the reference's, whole."""
    return sum(reference[name] == token_ids for name, token_ids in answers.items())


def full_precision_answers(bench: Bench) -> dict[str, list[int]]:
    """Return transformers' float32 answers to the bench's requests; they take minutes once."""
    kept = bench.folder / f"answers-{_digest(bench)}.json"
    if not kept.exists():
        contender = Contender(
            "transformers fp32, one at a time, for its answers",
            "ops.bench.peer_transformers",
            {"dtype": "float32", "mode": "alone"},
            TRANSFORMERS,
            in_flight=1,
        )
        answers = bench.run(contender, bench.requests).outcome.answers
        kept.write_text(json.dumps(answers), encoding="utf-8")
    loaded: dict[str, list[int]] = json.loads(kept.read_text(encoding="utf-8"))
    return loaded


def _digest(bench: Bench) -> str:
    """Name model and requests: other weights or other prompts have other answers."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(bench.model).glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    for request in bench.requests:
        digest.update(f"{request.prompt_ids} {request.max_tokens}".encode())
    return digest.hexdigest()
