"""Decoder: token ids of a ragged batch in, hidden states of the sampled rows out.

Owns the order of operations; what they are made of comes in as kernels. The residual stream is
float32 whatever the model's type: it costs little and keeps half-precision answers close to full
ones.
"""

from dataclasses import dataclass

import torch

from engine.kernels.interface import AttentionShape, Kernels, Linear, RaggedBatch
from engine.kv_cache import KvCache, LayerCache
from engine.model.rope import RopeTable


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights; qkv and gate_up are fused. Norms are float32."""

    attention_norm: torch.Tensor  # [M]
    qkv: Linear  # M -> (H + 2 G) D
    attention_out: Linear  # H D -> M
    shape: AttentionShape
    rope: RopeTable
    feed_forward_norm: torch.Tensor  # [M]
    gate_up: Linear  # M -> 2 F
    down: Linear  # F -> M


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder."""

    embedding: torch.Tensor  # [V, M]
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor  # [M]
    head: Linear  # M -> V
    norm_eps: float


class Decoder:
    """A model of the Llama kind over the paged cache."""

    def __init__(self, weights: DecoderWeights, kernels: Kernels, cache: KvCache) -> None:
        self._weights = weights
        self._kernels = kernels
        self._cache = cache

    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """Compute all rows, store their keys and values; return the normalised sampled rows."""
        weights = self._weights
        residual = self._kernels.embed(weights.embedding, batch, 1.0)  # [T, M] float32
        for layer, cache in zip(weights.layers, self._cache.layers, strict=True):
            self._attend(layer, residual, batch, cache)
            self._feed_forward(layer, residual)
        return self._kernels.rms_norm_sampled(
            residual, batch, weights.final_norm, weights.norm_eps
        )  # [R, M]

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score the vocabulary for normalised rows, [R, V] float32."""
        return self._kernels.scores(hidden, self._weights.head, None)

    def best(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the most likely token of each normalised row, [R]."""
        return self._kernels.best(hidden, self._weights.head)

    def _attend(
        self, layer: DecoderLayer, residual: torch.Tensor, batch: RaggedBatch, cache: LayerCache
    ) -> None:
        kernels = self._kernels
        x = kernels.rms_norm(residual, layer.attention_norm, self._weights.norm_eps)  # [T, M]
        qkv = kernels.linear(x, layer.qkv)  # [T, (H + 2 G) D]
        kernels.rotate_and_store(qkv, batch, layer.rope, cache, layer.shape)
        attended = kernels.attend(qkv, batch, cache, layer.shape)  # [T, H D]
        kernels.linear_add(attended, layer.attention_out, residual)

    def _feed_forward(self, layer: DecoderLayer, residual: torch.Tensor) -> None:
        kernels = self._kernels
        x = kernels.rms_norm(residual, layer.feed_forward_norm, self._weights.norm_eps)  # [T, M]
        gated = kernels.linear_gated(x, layer.gate_up)  # [T, F]
        kernels.linear_add(gated, layer.down, residual)
