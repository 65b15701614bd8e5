"""One layer's tensors on their way from a full model to a rounded one.

Owns what belongs together: weights as they are when they are rounded, and what they were rounded
to. Knows no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.model.stored_linear import Part
from engine.quantised import QuantisedWeight


@dataclass(slots=True)
class LayerTensors:
    """One layer's weights as they are being changed, fused; norms with their offset added."""

    linears: dict[Part, torch.Tensor]  # [out, in] each
    qkv_bias: torch.Tensor | None
    norm_before_attention: torch.Tensor | None  # [M]
    norm_before_feed_forward: torch.Tensor | None  # [M]


@dataclass(frozen=True, slots=True)
class RoundedLayer:
    """One layer before and after rounding: tensors are what the rounded weights stand for."""

    tensors: LayerTensors
    weights: Mapping[Part, QuantisedWeight]
