"""The table of rotations: cosine and sine of each position times each frequency.

RoFormer (Su et al. 2021), section 3.4; the halves of a head are the two coordinates, as
transformers has it.
"""

from dataclasses import dataclass
from math import pi

import torch

from engine.model.rope_config import LinearScaling, Llama3Scaling, RopeConfig


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Both tables are float32; rows are positions."""

    cosines: torch.Tensor  # [max_context, num_rotated / 2]
    sines: torch.Tensor


def rope_table(rope: RopeConfig, max_context: int, device: torch.device) -> RopeTable:
    """Compute the rotations of all positions."""
    exponents = torch.arange(0, rope.num_rotated, 2, dtype=torch.int64).float() / rope.num_rotated
    frequencies = _scale(1.0 / rope.theta**exponents, rope.scaling)
    angles = torch.arange(max_context, dtype=torch.float32)[:, None] * frequencies[None, :]
    return RopeTable(angles.cos().to(device), angles.sin().to(device))


def _scale(
    frequencies: torch.Tensor, scaling: Llama3Scaling | LinearScaling | None
) -> torch.Tensor:
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling():
            return _scale_llama3(frequencies, scaling)


def _scale_llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Stretch waves longer than the original context, keep short ones, blend in between."""
    turns = scaling.original_max_context * frequencies / (2 * pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    share_kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return share_kept * frequencies + (1 - share_kept) * frequencies / scaling.factor
