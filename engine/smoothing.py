"""Smoothing: moving large inputs of linear layers into weights, where they do less harm.

SmoothQuant (Xiao et al. 2022), section 4: dividing an input by a factor and multiplying its weights
by it leaves the product as it was. The division costs nothing: it is done beforehand, by
the norm, the values or the up projection that the input comes from. How much of an input's size
goes to its weights is chosen for each linear layer, by the error that bytes then make on typical
inputs (as AWQ does for weights alone: Lin et al. 2023, section 3.2). Owns the arithmetic on one
layer's tensors and no files.
"""

from collections.abc import Callable, Mapping, Set

import torch

from engine.layer_tensors import LayerTensors
from engine.model.config import ModelConfig
from engine.model.stored_linear import Part
from engine.rounding import round_int8, round_rows

# Shares of an input's size that are tried; 0 leaves it as it is.
_SHARES = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_NUM_TRIED = 512  # rows that the error is measured on


def smooth(
    layer: LayerTensors,
    inputs: Mapping[Part, torch.Tensor],
    parts: Set[Part],
    config: ModelConfig,
) -> None:
    """Change a layer's tensors so that it computes the same, with smoother inputs of some parts.

    Inputs has typical rows of each linear layer's inputs, [T, in].
    """
    if Part.QKV in parts and layer.norm_before_attention is not None:
        factors = _smooth_inputs(layer, Part.QKV, inputs)
        layer.norm_before_attention = layer.norm_before_attention / factors
    if Part.GATE_UP in parts and layer.norm_before_feed_forward is not None:
        factors = _smooth_inputs(layer, Part.GATE_UP, inputs)
        layer.norm_before_feed_forward = layer.norm_before_feed_forward / factors
    if Part.ATTENTION_OUT in parts:
        _smooth_values(layer, inputs[Part.ATTENTION_OUT], config)
    if Part.DOWN in parts:
        factors = _smooth_inputs(layer, Part.DOWN, inputs)
        gate, up = layer.linears[Part.GATE_UP].chunk(2)
        layer.linears[Part.GATE_UP] = torch.cat((gate, up / factors[:, None]))


def _smooth_inputs(
    layer: LayerTensors, part: Part, inputs: Mapping[Part, torch.Tensor]
) -> torch.Tensor:
    """Multiply a layer's weights; return what its inputs are to be divided by."""
    rows, weight = inputs[part], layer.linears[part]
    largest, by_input = rows.abs().amax(0), weight.abs().amax(0)
    factors = _best(rows, weight, lambda share: _factors(largest, by_input, share))
    layer.linears[part] = weight * factors
    return factors


def _smooth_values(layer: LayerTensors, rows: torch.Tensor, config: ModelConfig) -> None:
    """Query heads of a group share their values, so they share factors too."""
    heads = (config.num_kv_heads, -1, config.head_dim)
    weight = layer.linears[Part.ATTENTION_OUT]
    largest = rows.abs().amax(0).view(heads).amax(1).flatten()  # [G D]
    by_input = weight.abs().amax(0).view(heads).amax(1).flatten()  # [G D]
    group = config.num_heads // config.num_kv_heads

    def spread_factors(share: float) -> torch.Tensor:
        factors = _factors(largest, by_input, share)
        by_head = factors.view(config.num_kv_heads, 1, config.head_dim)
        return by_head.expand(-1, group, -1).flatten()  # [H D]

    spread = _best(rows, weight, spread_factors)
    layer.linears[Part.ATTENTION_OUT] = weight * spread
    factors = spread.view(heads)[:, 0].flatten()  # [G D]
    qkv = layer.linears[Part.QKV]
    num_rest = len(qkv) - len(factors)
    layer.linears[Part.QKV] = torch.cat((qkv[:num_rest], qkv[num_rest:] / factors[:, None]))
    if layer.qkv_bias is not None:
        bias = layer.qkv_bias
        layer.qkv_bias = torch.cat((bias[:num_rest], bias[num_rest:] / factors))


def _best(
    rows: torch.Tensor, weight: torch.Tensor, factors_of: Callable[[float], torch.Tensor]
) -> torch.Tensor:
    """Return the factors with which the product of bytes is nearest to the product."""
    rows = rows[:: -(-len(rows) // _NUM_TRIED)]
    product = rows @ weight.T
    # Of each row's own size: else the few largest decide, the same first tokens in every text.
    sizes = product.square().sum(-1) + 1e-12

    def error(factors: torch.Tensor) -> float:
        rounded = round_int8(weight * factors).dequantise()
        errors = (round_rows(rows / factors) @ rounded.T - product).square().sum(-1)
        return float((errors / sizes).sum())

    return min((factors_of(share) for share in _SHARES), key=error)


def _factors(largest: torch.Tensor, by_input: torch.Tensor, share: float) -> torch.Tensor:
    """Move a share of each input's size to its weights: section 4, equation 4."""
    if share == 0:
        return torch.ones_like(largest)
    factors = largest**share / by_input ** (1 - share)
    return torch.where(torch.isfinite(factors) & (factors > 0), factors, 1.0).clamp(1e-3, 1e3)
