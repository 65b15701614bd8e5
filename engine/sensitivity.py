"""Sensitivity: which linear layers of an int4 model are worth a byte for each weight.

Rounding all alike spends bits where they do little. What one layer costs is measured: it alone is
rounded, and the distance of the model's answers to the full model's is its cost (ZeroQ, Cai et al.
2020, section 3.2). Costs of several layers add up, so those that save most for a byte are kept in
int8 until the rest is within a budget. Fused layers are one: they share their input.

Owns measuring and choosing; what the budget is, others say. Knows no files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.distance import distance, no_cache, whole_texts
from engine.kernels.interface import RaggedBatch
from engine.layer_parts import Place, linears_of, with_linears
from engine.model.config import ModelConfig
from engine.model.decoder import DecoderLayer, DecoderWeights, LayerRunner
from engine.model.stored_linear import Part
from engine.quantised import QuantisedWeight
from engine.text_kernels import TextKernels

_SCALE_BYTES = 4  # of int8, for each output


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one linear layer costs in half bytes, in nats a token, and how much more bytes take."""

    place: Place
    cost: float
    extra_bytes: int


@torch.no_grad()
def measure_sensitivities(
    full: DecoderWeights,
    config: ModelConfig,
    rounded: Sequence[Mapping[Part, QuantisedWeight]],
    texts: Sequence[list[int]],
) -> list[Sensitivity]:
    """Round each linear layer alone and see how far the answers on some texts move.

    Full has weights in float32: in bfloat16 any change at all moves answers as far as one layer's
    rounding does.
    """
    reading = _Reading(full, config, whole_texts(texts))
    return [
        Sensitivity(place, cost, _extra_bytes(rounded[place.layer][place.part]))
        for place, cost in reading.costs(rounded)
    ]


def choose_kept(sensitivities: Iterable[Sensitivity], budget: float) -> frozenset[Place]:
    """Keep what saves most for a byte, until all the rest costs no more than the budget, in nats.

    Of equals the first in the model is kept.
    """
    in_order = sorted(sensitivities, key=lambda one: one.place, reverse=True)
    left = sorted(in_order, key=lambda one: one.cost / one.extra_bytes)
    kept = set()
    while left and sum(one.cost for one in left) > budget:
        kept.add(left.pop().place)
    return frozenset(kept)


class _Reading:
    """Some texts on their way through a full model; what is behind them is computed once."""

    def __init__(self, full: DecoderWeights, config: ModelConfig, batch: RaggedBatch) -> None:
        self._full = full
        self._batch = batch
        self._kernels = TextKernels(torch.float32)
        self._runner = LayerRunner(self._kernels, full.norm_eps)
        self._caches = no_cache(config).layers

    def costs(
        self, rounded: Sequence[Mapping[Part, QuantisedWeight]]
    ) -> Iterator[tuple[Place, float]]:
        """Go through the model; at each layer try its rounded parts, one at a time."""
        residual = self._kernels.embed(
            self._full.embedding, self._batch, self._full.embedding_scale
        )  # [T, M]
        wanted = self._finish(residual, 0, self._full.layers)
        for index, layer in enumerate(self._full.layers):
            following = self._full.layers[index + 1 :]
            for part, linear in linears_of(layer).items():
                weight = rounded[index][part].dequantise()
                changed = with_linears(layer, {part: replace(linear, data=weight)})
                found = self._finish(residual, index, (changed, *following))
                yield Place(index, part), float(distance(found, wanted))
            self._runner.run(layer, residual, self._batch, self._caches[index])

    def _finish(
        self, residual: torch.Tensor, first: int, layers: tuple[DecoderLayer, ...]
    ) -> torch.Tensor:
        """Run the rest of a model; return what it foretells at each row, [T, V]."""
        residual, full = residual.clone(), self._full
        for layer, cache in zip(layers, self._caches[first:], strict=True):
            self._runner.run(layer, residual, self._batch, cache)
        hidden = self._kernels.rms_norm_sampled(
            residual, self._batch, full.final_norm, full.norm_eps
        )  # [T, M]
        return self._kernels.scores(hidden, full.head, full.score_softcap).log_softmax(-1)


def _extra_bytes(weight: QuantisedWeight) -> int:
    """Count what int8 takes more than these half bytes."""
    scales_bytes = _SCALE_BYTES * len(weight.values) - weight.scales.nbytes
    return weight.values.nbytes + scales_bytes
