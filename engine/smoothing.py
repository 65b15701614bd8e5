"""Smoothing: moving large inputs of linear layers into weights, where they do less harm.

SmoothQuant (Xiao et al. 2022), section 4: dividing an input by a factor and multiplying its weights
by it leaves the product as it was. The division costs nothing: it is done beforehand, by
the norm, the values or the up projection that the input comes from. Owns the arithmetic on one
layer's tensors and no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.model.config import ModelConfig
from engine.model.stored_linear import Part


@dataclass(slots=True)
class LayerTensors:
    """One layer's weights as they are being changed, fused; norms with their offset added."""

    linears: dict[Part, torch.Tensor]  # [out, in] each
    qkv_bias: torch.Tensor | None
    norm_before_attention: torch.Tensor | None  # [M]
    norm_before_feed_forward: torch.Tensor | None  # [M]


def smooth(layer: LayerTensors, largest: Mapping[Part, torch.Tensor], config: ModelConfig) -> None:
    """Change a layer's tensors so that it computes the same from smoother inputs.

    Largest has the largest absolute value of each input of each linear layer.
    """
    if layer.norm_before_attention is not None:
        factors = _smooth_inputs(layer, Part.QKV, largest)
        layer.norm_before_attention = layer.norm_before_attention / factors
    if layer.norm_before_feed_forward is not None:
        factors = _smooth_inputs(layer, Part.GATE_UP, largest)
        layer.norm_before_feed_forward = layer.norm_before_feed_forward / factors
    _smooth_values(layer, largest[Part.ATTENTION_OUT], config)
    factors = _smooth_inputs(layer, Part.DOWN, largest)
    gate, up = layer.linears[Part.GATE_UP].chunk(2)
    layer.linears[Part.GATE_UP] = torch.cat((gate, up / factors[:, None]))


def _smooth_inputs(
    layer: LayerTensors, part: Part, largest: Mapping[Part, torch.Tensor]
) -> torch.Tensor:
    """Multiply a layer's weights; return what its inputs are to be divided by."""
    factors = _factors(largest[part], layer.linears[part])
    layer.linears[part] = layer.linears[part] * factors
    return factors


def _smooth_values(layer: LayerTensors, largest: torch.Tensor, config: ModelConfig) -> None:
    """Query heads of a group share their values, so they share factors too."""
    heads = (config.num_kv_heads, -1, config.head_dim)
    by_head = layer.linears[Part.ATTENTION_OUT].abs().amax(0).view(heads).amax(1).flatten()  # [G D]
    factors = _factors(largest.view(heads).amax(1).flatten(), by_head[None])
    qkv = layer.linears[Part.QKV]
    num_rest = len(qkv) - len(factors)
    layer.linears[Part.QKV] = torch.cat((qkv[:num_rest], qkv[num_rest:] / factors[:, None]))
    if layer.qkv_bias is not None:
        bias = layer.qkv_bias
        layer.qkv_bias = torch.cat((bias[:num_rest], bias[num_rest:] / factors))
    group = config.num_heads // config.num_kv_heads
    spread = factors.view(heads).repeat_interleave(group, dim=1).flatten()  # [H D]
    layer.linears[Part.ATTENTION_OUT] = layer.linears[Part.ATTENTION_OUT] * spread


def _factors(largest: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Share an input's largest value between it and its weights, half and half."""
    factors = (largest / weight.abs().amax(0)).sqrt()
    return torch.where(torch.isfinite(factors) & (factors > 0), factors, 1.0).clamp(1e-3, 1e3)
