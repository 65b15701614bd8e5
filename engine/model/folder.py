"""What a model folder says about itself in JSON: config.json, generation_config.json, tokenizer_config.json.

Owns reading those files and the one fact that several of them state, the tokens that end an answer. Must not import
torch: the tokenizer reads from here.
"""

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelFolderError


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object; raise ModelFolderError when it is missing or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read as JSON"
        raise ModelFolderError(message) from error
    if not isinstance(value, dict):
        message = f"{path} holds no JSON object"
        raise ModelFolderError(message)
    return value


def read_eos_token_ids(folder: Path) -> frozenset[int]:
    """Return the tokens that end an answer; generation_config.json, where there is one, has the last word."""
    path = folder / "generation_config.json"
    if path.exists():
        declared = read_json(path).get("eos_token_id")
        if declared is not None:
            return _as_ids(declared)
    return _as_ids(read_json(folder / "config.json").get("eos_token_id"))


def _as_ids(declared: int | list[int] | None) -> frozenset[int]:
    if declared is None:
        return frozenset()
    return frozenset([declared] if isinstance(declared, int) else declared)
