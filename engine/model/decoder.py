"""Decoder: token ids of a ragged batch in, hidden states of the sampled rows out.

Owns the order of operations in a layer; what they are made of comes in as linear layers and
kernels. The residual stream is float32 whatever the model's type: it costs little and keeps
half-precision answers close to full ones.
"""

from dataclasses import dataclass

import torch

from engine.kernels.interface import AttentionShape, Kernels, RaggedBatch
from engine.kv_cache import KvCache, LayerCache
from engine.model.linear import Linear
from engine.model.rope import RopeTable


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights; qkv and gate_up are fused."""

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
    """All weights of a decoder. The embedding may be the head's weight too."""

    embedding: torch.Tensor  # [V, M]
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor  # [M]
    head: Linear  # M -> V
    norm_eps: float


class Decoder:
    """Runs a model of the Llama kind over the paged cache."""

    def __init__(self, weights: DecoderWeights, kernels: Kernels) -> None:
        self._weights = weights
        self._kernels = kernels

    def forward(self, batch: RaggedBatch, cache: KvCache) -> torch.Tensor:
        """Compute all rows, store their keys and values; return the normalised sampled rows."""
        weights = self._weights
        residual = weights.embedding[batch.token_ids].float()  # [T, M] float32
        update: torch.Tensor | None = None
        for layer, layer_cache in zip(weights.layers, cache.layers, strict=True):
            update = self._run_layer(layer, residual, update, batch, layer_cache)
        assert update is not None, "a decoder has layers"
        rows = batch.sampled_rows
        last = residual[rows] + update[rows]  # [R, M] float32
        return self._kernels.rms_norm(last, weights.final_norm, weights.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score the vocabulary for normalised rows."""
        return self._weights.head(hidden).float()  # [R, V]

    def _run_layer(
        self,
        layer: DecoderLayer,
        residual: torch.Tensor,
        update: torch.Tensor | None,
        batch: RaggedBatch,
        cache: LayerCache,
    ) -> torch.Tensor:
        """Add the last update to the residual in place; return this layer's, not yet added."""
        kernels = self._kernels
        eps = self._weights.norm_eps
        if update is None:
            x = kernels.rms_norm(residual, layer.attention_norm, eps)
        else:
            x = kernels.add_rms_norm(residual, update, layer.attention_norm, eps)
        qkv = layer.qkv(x)  # [T, (H + 2 G) D]
        kernels.rotate_and_store(qkv, batch, layer.rope, cache, layer.shape)
        attended = kernels.attend(qkv, batch, cache, layer.shape)  # [T, H D]
        x = kernels.add_rms_norm(
            residual, layer.attention_out(attended), layer.feed_forward_norm, eps
        )
        return layer.down(kernels.silu_mul(layer.gate_up(x)))
