"""RopeConfig: how positions turn queries and keys, as the configuration states it.

Owns reading the two ways of writing it down: rope_theta with rope_scaling, and rope_parameters.
Must not import torch; engine/model/rope.py computes the tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, TypeAlias

from engine.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of low frequencies (transformers, modeling_rope_utils.py, llama3)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, section 3.2); the betas are turns within the original context."""

    factor: float
    beta_fast: float
    beta_slow: float
    rounds_range: bool
    original_max_context: int


@dataclass(frozen=True, slots=True)
class LongScaling:
    """LongRoPE (Ding et al. 2024): a factor for each frequency, others beyond the original context.

    Which of the two holds is decided once, by the longest context an engine serves: keys in the
    cache have been turned already, and an answer may not depend on when its length passed a border.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_context: int


Scaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | LongScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """num_rotated is the part of each head, from its beginning, that is turned.

    What is turned is also multiplied by magnitude.
    """

    theta: float
    num_rotated: int
    scaling: Scaling | None = None
    magnitude: float = 1.0


def read_rope(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Read the rotation of layers that have no other."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    share = float(
        parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
    )
    num_rotated = int(head_dim * share)
    original = int(
        config.get("original_max_position_embeddings")
        or parameters.get("original_max_position_embeddings")
        or config["max_position_embeddings"]
    )
    match _kind(config, parameters):
        # Dynamic scaling changes nothing within max_position_embeddings, and no context is longer.
        case "default" | "dynamic":
            return RopeConfig(theta, num_rotated)
        case "linear":
            return RopeConfig(theta, num_rotated, LinearScaling(float(parameters["factor"])))
        case "llama3":
            return RopeConfig(theta, num_rotated, _read_llama3(parameters, original))
        case "yarn":
            scaling = _read_yarn(parameters, original)
            return RopeConfig(theta, num_rotated, scaling, _yarn_magnitude(parameters))
        case "longrope":
            extension = parameters.get("factor") or config["max_position_embeddings"] / original
            magnitude = parameters.get("attention_factor") or _long_magnitude(extension, original)
            return RopeConfig(theta, num_rotated, _read_long(parameters, original), magnitude)
        case kind:
            raise UnsupportedModelError(f"rope type {kind!r}")


def _kind(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    # Phi-3's first folders call LongRoPE "su" or, wrongly, "yarn".
    if config.get("model_type") == "phi3" and kind in {"su", "yarn"}:
        return "longrope"
    return kind


def _read_llama3(parameters: Mapping[str, Any], original_max_context: int) -> Llama3Scaling:
    return Llama3Scaling(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_context=original_max_context,
    )


def _read_yarn(parameters: Mapping[str, Any], original_max_context: int) -> YarnScaling:
    return YarnScaling(
        factor=float(parameters["factor"]),
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        rounds_range=bool(parameters.get("truncate", True)),
        original_max_context=original_max_context,
    )


def _yarn_magnitude(parameters: Mapping[str, Any]) -> float:
    """Return YaRN's temperature (section 3.3), as transformers reads it from a configuration."""
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])
    strength, strength_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    growth = log(max(1.0, float(parameters["factor"])))
    if strength and strength_all:
        return float((0.1 * strength * growth + 1) / (0.1 * strength_all * growth + 1))
    return 0.1 * growth + 1


def _read_long(parameters: Mapping[str, Any], original_max_context: int) -> LongScaling:
    return LongScaling(
        short_factors=tuple(map(float, parameters["short_factor"])),
        long_factors=tuple(map(float, parameters["long_factor"])),
        original_max_context=original_max_context,
    )


def _long_magnitude(extension: float, original_max_context: int) -> float:
    return 1.0 if extension <= 1 else sqrt(1 + log(extension) / log(original_max_context))
