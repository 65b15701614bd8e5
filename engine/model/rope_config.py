"""RopeConfig: how positions turn queries and keys, as the configuration states it.

Owns reading the two ways of writing it down: rope_theta with rope_scaling, and rope_parameters.
Must not import torch; engine/model/rope.py computes the tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of low frequencies (transformers, modeling_rope_utils.py, llama3)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_context: int


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """num_rotated is the part of each head, from its beginning, that is turned."""

    theta: float
    num_rotated: int
    scaling: Llama3Scaling | LinearScaling | None = None


def read_rope(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Read the rotation that all layers share."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    share = float(
        parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
    )
    return RopeConfig(theta, int(head_dim * share), _read_scaling(parameters))


def _read_scaling(parameters: Mapping[str, Any]) -> Llama3Scaling | LinearScaling | None:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(float(parameters["factor"]))
        case "llama3":
            return Llama3Scaling(
                factor=float(parameters["factor"]),
                low_freq_factor=float(parameters["low_freq_factor"]),
                high_freq_factor=float(parameters["high_freq_factor"]),
                original_max_context=int(parameters["original_max_position_embeddings"]),
            )
        case _:
            raise UnsupportedModelError(f"rope type {kind!r}")
