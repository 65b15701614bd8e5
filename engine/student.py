"""Student: the parameters of a rounded model that learns, and what they stand for.

Owns values in units of a step, which are rounded each time they are used, and factors of scales and
norms. Gradients pass rounding as if it were not there. Knows no texts and no course.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from engine.kernels.interface import Linear
from engine.layer_parts import linears_of, with_linears
from engine.layer_tensors import RoundedLayer
from engine.model.config import Scheme
from engine.model.decoder import DecoderLayer, DecoderWeights
from engine.model.stored_linear import Part
from engine.quantised import QuantisedWeight, pack_int4, spread_scales, unpack_int4

_LOWEST, _HIGHEST = -8, 7
# How far from its whole number a value may start. Those that GPTQ rounded the other way, to make up
# for others, would start at the border, 0.5; then the first steps, which are mostly chance, undo
# what it did, all at once.
_INSIDE = 0.4


class Student:
    """The rounded model's parameters."""

    def __init__(self, full: DecoderWeights, rounded: Sequence[RoundedLayer]) -> None:
        self._full = full
        self._layers = [_StudentLayer(*layers) for layers in zip(full.layers, rounded, strict=True)]

    @property
    def values(self) -> list[torch.Tensor]:
        """Return all that is rounded, in steps."""
        return [linear.values for layer in self._layers for linear in layer.linears.values()]

    @property
    def factors(self) -> list[torch.Tensor]:
        """Return what scales and norms are multiplied with."""
        scales = [linear.factors for layer in self._layers for linear in layer.linears.values()]
        return scales + [factor for layer in self._layers for factor in layer.norm_factors]

    def weights(self) -> DecoderWeights:
        """Return what the parameters stand for, gradients included."""
        return replace(self._full, layers=tuple(layer.current() for layer in self._layers))

    def layers(self) -> list[RoundedLayer]:
        """Return what has been learned."""
        return [layer.learned() for layer in self._layers]


class _StudentLayer:
    """One layer's parameters; linear layers in int8 stay as they were rounded."""

    def __init__(self, full: DecoderLayer, rounded: RoundedLayer) -> None:
        self._rounded = rounded
        tensors = rounded.tensors
        like = linears_of(full)
        like[Part.QKV] = replace(like[Part.QKV], bias=tensors.qkv_bias)
        self.linears = {
            part: _StudentLinear(like[part], tensors.linears[part], weight)
            for part, weight in rounded.weights.items()
            if weight.scheme is Scheme.INT4
        }
        in_bytes = {
            part: replace(like[part], data=weight.values, scales=weight.scales[:, 0])
            for part, weight in rounded.weights.items()
            if weight.scheme is Scheme.INT8
        }
        self._fixed = with_linears(full, in_bytes)
        self._norms = (tensors.norm_before_attention, tensors.norm_before_feed_forward)
        self.norm_factors = [_parameter(norm) for norm in self._norms if norm is not None]

    def current(self) -> DecoderLayer:
        norm_before_attention, norm_before_feed_forward = self._current_norms()
        return replace(
            with_linears(
                self._fixed, {part: linear.current() for part, linear in self.linears.items()}
            ),
            norm_before_attention=norm_before_attention,
            norm_before_feed_forward=norm_before_feed_forward,
        )

    def learned(self) -> RoundedLayer:
        norm_before_attention, norm_before_feed_forward = self._current_norms()
        tensors = replace(
            self._rounded.tensors,
            norm_before_attention=norm_before_attention,
            norm_before_feed_forward=norm_before_feed_forward,
        )
        learned = {part: linear.rounded() for part, linear in self.linears.items()}
        return RoundedLayer(tensors, {**self._rounded.weights, **learned})

    def _current_norms(self) -> list[torch.Tensor | None]:
        factors = iter(self.norm_factors)
        return [None if norm is None else norm * next(factors) for norm in self._norms]


class _StudentLinear:
    """One linear layer's parameters; values start as near to the full weight as GPTQ's choice."""

    def __init__(self, like: Linear, full: torch.Tensor, rounded: QuantisedWeight) -> None:
        self._like = like
        self._group_size = rounded.group_size
        self._scales = rounded.scales.float()
        whole = unpack_int4(rounded.values).float()
        wished = full / spread_scales(self._scales, self._group_size, like.num_in)
        self.values = wished.clamp(whole - _INSIDE, whole + _INSIDE).requires_grad_()
        self.factors = _parameter(self._scales)

    def current(self) -> Linear:
        fixed = self.values.detach()
        whole = (self.values + (_nearest(fixed) - fixed)).bfloat16()
        scales = spread_scales(self._rounded_scales(), self._group_size, self._like.num_in)
        return replace(self._like, data=whole * scales.bfloat16())

    def rounded(self) -> QuantisedWeight:
        values = pack_int4(_nearest(self.values.detach()))
        return QuantisedWeight(
            Scheme.INT4, values, self._rounded_scales().detach(), self._group_size
        )

    def _rounded_scales(self) -> torch.Tensor:
        return (self._scales * self.factors).bfloat16()


def _parameter(like: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(like, requires_grad=True)


def _nearest(values: torch.Tensor) -> torch.Tensor:
    return values.round().clamp(_LOWEST, _HIGHEST)
