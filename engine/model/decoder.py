"""Decoder: token ids of a ragged batch in, hidden states of the sampled rows out.

Owns the order of operations; what they are made of comes in as kernels. The residual stream is
float32 whatever the model's type: it costs little and keeps half-precision answers close to full
ones.
"""

from dataclasses import dataclass

import torch

from engine.kernels.interface import (
    AttentionShape,
    Experts,
    FeedForward,
    Kernels,
    Linear,
    Parts,
    RaggedBatch,
)
from engine.kv_cache import KvCache, LayerCache
from engine.model.rope import RopeTable


@dataclass(frozen=True, slots=True)
class PartNorm:
    """A norm of query or key heads."""

    parts: Parts
    weight: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights; qkv and gate_up are fused. A norm is float32, or None.

    There is no norm after experts.
    """

    norm_before_attention: torch.Tensor | None  # [M]
    qkv: Linear  # M -> (H + 2 G) D
    qk_norms: tuple[PartNorm, ...]
    attention_out: Linear  # H D -> M
    norm_after_attention: torch.Tensor | None  # [M]
    shape: AttentionShape
    rope: RopeTable
    norm_before_feed_forward: torch.Tensor | None  # [M]
    feed_forward: FeedForward | Experts
    norm_after_feed_forward: torch.Tensor | None  # [M]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder."""

    embedding: Linear  # M -> V: a table of rows, and maybe the head itself
    embedding_scale: float
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor  # [M]
    head: Linear  # M -> V
    score_softcap: float | None
    norm_eps: float


class Decoder:
    """A model of one of the families in engine/model/families.py, over the paged cache."""

    def __init__(self, weights: DecoderWeights, kernels: Kernels, cache: KvCache) -> None:
        self._weights = weights
        self._kernels = kernels
        self._cache = cache
        self._runner = LayerRunner(kernels, weights.norm_eps)

    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """Compute all rows, store their keys and values; return the normalised sampled rows."""
        weights = self._weights
        residual = self._kernels.embed(
            weights.embedding, batch, weights.embedding_scale
        )  # [T, M] float32
        for layer, cache in zip(weights.layers, self._cache.layers, strict=True):
            self._runner.run(layer, residual, batch, cache)
        return self._kernels.rms_norm_sampled(
            residual, batch, weights.final_norm, weights.norm_eps
        )  # [R, M]

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score the vocabulary for normalised rows, [R, V] float32."""
        return self._kernels.scores(hidden, self._weights.head, self._weights.score_softcap)

    def best(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the most likely token of each normalised row, [R]; a softcap keeps their order."""
        return self._kernels.best(hidden, self._weights.head)


class LayerRunner:
    """Computes one layer of any decoder."""

    def __init__(self, kernels: Kernels, norm_eps: float) -> None:
        self._kernels = kernels
        self._norm_eps = norm_eps

    def run(
        self, layer: DecoderLayer, residual: torch.Tensor, batch: RaggedBatch, cache: LayerCache
    ) -> None:
        """Add to the residual what the layer makes of it."""
        self._attend(layer, residual, batch, cache)
        self._feed_forward(layer, residual)

    def _attend(
        self, layer: DecoderLayer, residual: torch.Tensor, batch: RaggedBatch, cache: LayerCache
    ) -> None:
        kernels = self._kernels
        x = self._enter(residual, layer.norm_before_attention)  # [T, M]
        qkv = kernels.linear(x, layer.qkv)  # [T, (H + 2 G) D]
        for norm in layer.qk_norms:
            kernels.rms_norm_parts(qkv, norm.parts, norm.weight, self._norm_eps)
        kernels.rotate_and_store(qkv, batch, layer.rope, cache, layer.shape)
        attended = kernels.attend(qkv, batch, cache, layer.shape)  # [T, H D]
        self._leave(attended, layer.attention_out, layer.norm_after_attention, residual)

    def _feed_forward(self, layer: DecoderLayer, residual: torch.Tensor) -> None:
        x = self._enter(residual, layer.norm_before_feed_forward)  # [T, M]
        match layer.feed_forward:
            case FeedForward(gate_up, down):
                gated = self._kernels.linear_gated(x, gate_up)  # [T, F]
                self._leave(gated, down, layer.norm_after_feed_forward, residual)
            case Experts() as experts:
                self._kernels.experts_add(x, experts, residual)

    def _enter(self, residual: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """Return what goes into a part of a layer, in the model's type."""
        if norm is None:
            return self._kernels.narrow(residual)
        return self._kernels.rms_norm(residual, norm, self._norm_eps)

    def _leave(
        self, x: torch.Tensor, weight: Linear, norm: torch.Tensor | None, residual: torch.Tensor
    ) -> None:
        """Add what comes out of a part of a layer to the residual."""
        if norm is None:
            self._kernels.linear_add(x, weight, residual)
        else:
            product = self._kernels.linear(x, weight)  # [T, M]
            self._kernels.rms_norm_add(product, norm, self._norm_eps, residual)
