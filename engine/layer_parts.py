"""The linear layers of a decoder layer by the names of their parts.

Owns reading and exchanging them where all are treated alike; a decoder itself names each one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.kernels.interface import FeedForward, Linear
from engine.model.decoder import DecoderLayer
from engine.model.stored_linear import Part


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One linear layer of a model."""

    layer: int
    part: Part


def linears_of(layer: DecoderLayer) -> dict[Part, Linear]:
    """Return a layer's linear layers."""
    assert isinstance(layer.feed_forward, FeedForward), "experts are not quantised"
    return {
        Part.QKV: layer.qkv,
        Part.ATTENTION_OUT: layer.attention_out,
        Part.GATE_UP: layer.feed_forward.gate_up,
        Part.DOWN: layer.feed_forward.down,
    }


def with_linears(layer: DecoderLayer, changed: Mapping[Part, Linear]) -> DecoderLayer:
    """Return the layer with some of its linear layers exchanged."""
    linears = linears_of(layer) | dict(changed)
    return replace(
        layer,
        qkv=linears[Part.QKV],
        attention_out=linears[Part.ATTENTION_OUT],
        feed_forward=FeedForward(linears[Part.GATE_UP], linears[Part.DOWN]),
    )
