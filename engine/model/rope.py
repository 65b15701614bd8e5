"""The table of rotations: cosine and sine of each position times each frequency.

RoFormer (Su et al. 2021), section 3.4; the halves of a head are the two coordinates, as
transformers has it.
"""

from dataclasses import dataclass
from math import ceil, floor, log, pi

import torch

from engine.model.rope_config import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    YarnScaling,
)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Both tables are float32; rows are positions."""

    cosines: torch.Tensor  # [max_context, num_rotated / 2]
    sines: torch.Tensor


def rope_table(rope: RopeConfig, max_context: int, device: torch.device) -> RopeTable:
    """Compute the rotations of all positions."""
    exponents = torch.arange(0, rope.num_rotated, 2, dtype=torch.int64).float() / rope.num_rotated
    frequencies = _scale(1.0 / rope.theta**exponents, rope, max_context)
    angles = torch.arange(max_context, dtype=torch.float32)[:, None] * frequencies[None, :]
    return RopeTable(
        (angles.cos() * rope.magnitude).to(device), (angles.sin() * rope.magnitude).to(device)
    )


def _scale(frequencies: torch.Tensor, rope: RopeConfig, max_context: int) -> torch.Tensor:
    match rope.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            return _scale_llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            return _scale_yarn(frequencies, scaling, rope)
        case LongScaling() as scaling:
            is_long = max_context > scaling.original_max_context
            factors = scaling.long_factors if is_long else scaling.short_factors
            return frequencies / torch.tensor(factors)


def _scale_llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Stretch waves longer than the original context, keep short ones, blend in between."""
    turns = scaling.original_max_context * frequencies / (2 * pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    share_kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return share_kept * frequencies + (1 - share_kept) * frequencies / scaling.factor


def _scale_yarn(frequencies: torch.Tensor, scaling: YarnScaling, rope: RopeConfig) -> torch.Tensor:
    """Keep the first frequencies, stretch the last, blend over the range between the two betas."""

    def place_of(num_turns: float) -> float:
        length = scaling.original_max_context / (num_turns * 2 * pi)
        return rope.num_rotated * log(length) / (2 * log(rope.theta))

    low, high = place_of(scaling.beta_fast), place_of(scaling.beta_slow)
    if scaling.rounds_range:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, rope.num_rotated - 1)
    places = torch.arange(len(frequencies), dtype=torch.float32)
    share_stretched = ((places - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    return share_stretched * frequencies / scaling.factor + (1 - share_stretched) * frequencies
