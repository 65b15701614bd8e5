"""Student: the parameters of a rounded model that learns, and what they stand for.

Owns values in units of a step, which are rounded each time they are used, and factors of scales and
norms. Gradients pass rounding as if it were not there. Knows no texts and no course.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.kernels.interface import FeedForward, Linear
from engine.model.config import Scheme
from engine.model.decoder import DecoderLayer, DecoderWeights
from engine.model.stored_linear import Part
from engine.quantised import QuantisedWeight, pack_int4, spread_scales, unpack_int4

_LOWEST, _HIGHEST = -8, 7
# How far from its whole number a value may start. Those that GPTQ rounded the other way, to make up
# for others, would start at the border, 0.5; then the first steps, which are mostly chance, undo
# what it did, all at once.
_INSIDE = 0.4


@dataclass(frozen=True, slots=True)
class LearnedLayer:
    """One layer's rounded weights and norms."""

    weights: Mapping[Part, QuantisedWeight]
    norm_before_attention: torch.Tensor | None
    norm_before_feed_forward: torch.Tensor | None


class Student:
    """The rounded model's parameters."""

    def __init__(
        self, full: DecoderWeights, rounded: Sequence[Mapping[Part, QuantisedWeight]]
    ) -> None:
        self._full = full
        self._layers = [
            _StudentLayer(layer, weights)
            for layer, weights in zip(full.layers, rounded, strict=True)
        ]

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

    def layers(self) -> list[LearnedLayer]:
        """Return what has been learned."""
        return [layer.learned() for layer in self._layers]


class _StudentLayer:
    """One layer's parameters."""

    def __init__(self, full: DecoderLayer, rounded: Mapping[Part, QuantisedWeight]) -> None:
        self._full = full
        linears = _linears_of(full)
        self.linears = {
            part: _StudentLinear(linears[part], weight) for part, weight in rounded.items()
        }
        self._norms = (full.norm_before_attention, full.norm_before_feed_forward)
        self.norm_factors = [_parameter(norm) for norm in self._norms if norm is not None]

    def current(self) -> DecoderLayer:
        linears = {part: linear.current() for part, linear in self.linears.items()}
        norm_before_attention, norm_before_feed_forward = self._current_norms()
        return replace(
            self._full,
            qkv=linears[Part.QKV],
            attention_out=linears[Part.ATTENTION_OUT],
            feed_forward=FeedForward(linears[Part.GATE_UP], linears[Part.DOWN]),
            norm_before_attention=norm_before_attention,
            norm_before_feed_forward=norm_before_feed_forward,
        )

    def learned(self) -> LearnedLayer:
        weights = {part: linear.rounded() for part, linear in self.linears.items()}
        return LearnedLayer(weights, *self._current_norms())

    def _current_norms(self) -> list[torch.Tensor | None]:
        factors = iter(self.norm_factors)
        return [None if norm is None else norm * next(factors) for norm in self._norms]


class _StudentLinear:
    """One linear layer's parameters; values start as near to the full weight as GPTQ's choice."""

    def __init__(self, full: Linear, rounded: QuantisedWeight) -> None:
        self._full = full
        self._group_size = rounded.group_size
        self._scales = rounded.scales.float()
        whole = unpack_int4(rounded.values).float()
        steps = spread_scales(self._scales, self._group_size, full.num_in)
        wished = full.data.float() / steps
        self.values = wished.clamp(whole - _INSIDE, whole + _INSIDE).requires_grad_()
        self.factors = _parameter(self._scales)

    def current(self) -> Linear:
        fixed = self.values.detach()
        whole = (self.values + (_nearest(fixed) - fixed)).bfloat16()
        scales = spread_scales(self._rounded_scales(), self._group_size, self._full.num_in)
        return replace(self._full, data=whole * scales.bfloat16())

    def rounded(self) -> QuantisedWeight:
        values = pack_int4(_nearest(self.values.detach()))
        return QuantisedWeight(
            Scheme.INT4, values, self._rounded_scales().detach(), self._group_size
        )

    def _rounded_scales(self) -> torch.Tensor:
        return (self._scales * self.factors).bfloat16()


def _linears_of(layer: DecoderLayer) -> dict[Part, Linear]:
    assert isinstance(layer.feed_forward, FeedForward), "experts are not quantised"
    return {
        Part.QKV: layer.qkv,
        Part.ATTENTION_OUT: layer.attention_out,
        Part.GATE_UP: layer.feed_forward.gate_up,
        Part.DOWN: layer.feed_forward.down,
    }


def _parameter(like: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(like, requires_grad=True)


def _nearest(values: torch.Tensor) -> torch.Tensor:
    return values.round().clamp(_LOWEST, _HIGHEST)
