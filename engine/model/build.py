"""Builds a decoder's weights from a model folder, layer by layer.

Owns the names that weight files use and the fusing of what is computed together. A layer's tensors
are packed and their originals dropped before the next layer is read, so loading needs little more
than the weights themselves.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import WeightsError
from engine.kernels.interface import (
    AttentionShape,
    Experts,
    FeedForward,
    Kernels,
    Linear,
    Parts,
)
from engine.model import stored_linear
from engine.model.config import Activation, ModelConfig, QueryKeyNorm, Scheme
from engine.model.decoder import DecoderLayer, DecoderWeights, PartNorm
from engine.model.rope import RopeTable, rope_table
from engine.model.rope_config import RopeConfig
from engine.model.stored_experts import stored_experts
from engine.model.stored_linear import StoredLinear
from engine.model.weights import Weights, open_weights, take_fused
from engine.quantised import SCALES_SUFFIX, SUFFIXES, QuantisedWeight


@dataclass(frozen=True, slots=True)
class Placement:
    """How weights are held: type, device, and the longest context rotations are needed for."""

    dtype: torch.dtype
    device: torch.device
    max_context: int


def load_decoder_weights(
    folder: Path, config: ModelConfig, kernels: Kernels, placement: Placement
) -> DecoderWeights:
    """Read, fuse and pack all weights of a model folder."""
    ropes = rope_tables(config, placement.max_context, placement.device)
    # Rounded as it was in training (transformers, modeling_gemma2.py).
    embedding_scale = torch.tensor(config.embedding_scale, dtype=placement.dtype)
    with open_weights(folder, placement.device) as files:
        builder = WeightsBuilder(files, config, kernels, placement.dtype)
        embedding = builder.embedding()
        is_head = config.ties_embeddings and kernels.shares_tables
        return DecoderWeights(
            embedding=embedding,
            embedding_scale=float(embedding_scale),
            layers=tuple(builder.layer(index, ropes) for index in range(config.num_layers)),
            final_norm=builder.norm("model.norm", config.hidden_size),
            head=embedding if is_head else builder.linear(stored_linear.head(config)),
            score_softcap=config.score_softcap,
            norm_eps=config.norm_eps,
        )


def rope_tables(
    config: ModelConfig, max_context: int, device: torch.device
) -> dict[RopeConfig, RopeTable]:
    """Compute the rotations that the layers use."""
    return {
        rope: rope_table(rope, max_context, device)
        for rope in {layer.rope for layer in config.layers}
    }


class WeightsBuilder:
    """Reads the parts of one model."""

    def __init__(
        self, files: Weights, config: ModelConfig, kernels: Kernels, dtype: torch.dtype
    ) -> None:
        self._files = files
        self._config = config
        self._kernels = kernels
        self._dtype = dtype

    def embedding(self) -> Linear:
        """Read the embedding."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        table = self._files.take("model.embed_tokens.weight", shape, self._dtype)
        return self._kernels.pack_table(table)

    def norm(self, name: str, width: int) -> torch.Tensor:
        """Read a norm's weights; the sum is a copy of its own."""
        stored = self._files.take(f"{name}.weight", (width,), torch.float32)
        return stored + self._config.norm_offset

    def linear(self, stored: StoredLinear, activation: Activation | None = None) -> Linear:
        """Read the weights of layers with the same input and make one layer of them."""
        bias = take_fused(self._files, stored, "bias", torch.float32) if stored.has_bias else None
        if f"{stored.names[0]}.{SUFFIXES[Scheme.INT8]}" in self._files:
            return self._int8(stored, bias, activation)
        if f"{stored.names[0]}.{SUFFIXES[Scheme.INT4]}" in self._files:
            return self._int4(stored, bias, activation)
        weight = take_fused(self._files, stored, "weight", self._dtype, stored.num_in)
        return self._kernels.pack(weight, bias, activation)

    def layer(self, index: int, ropes: dict[RopeConfig, RopeTable]) -> DecoderLayer:
        """Read one layer."""
        config = self._config
        prefix = f"model.layers.{index}."
        return DecoderLayer(
            norm_before_attention=self._layer_norm(prefix, config.norms.before_attention),
            qkv=self.linear(stored_linear.qkv(config, index)),
            qk_norms=self._qk_norms(prefix + "self_attn."),
            attention_out=self.linear(stored_linear.attention_out(config, index)),
            norm_after_attention=self._layer_norm(prefix, config.norms.after_attention),
            shape=AttentionShape(
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                scale=config.attention_scale,
                window=config.layers[index].window,
                softcap=config.attention_softcap,
            ),
            rope=ropes[config.layers[index].rope],
            norm_before_feed_forward=self._layer_norm(prefix, config.norms.before_feed_forward),
            feed_forward=self._feed_forward(index),
            norm_after_feed_forward=self._layer_norm(prefix, config.norms.after_feed_forward),
        )

    def _int8(
        self, stored: StoredLinear, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        quantisation = self._config.quantisation
        if quantisation is None or quantisation.scheme_of(stored.names[0]) is not Scheme.INT8:
            raise WeightsError(f"{stored.names[0]}: int8, which config.json does not say")
        weight = take_fused(self._files, stored, SUFFIXES[Scheme.INT8], torch.int8, stored.num_in)
        scales = take_fused(self._files, stored, SCALES_SUFFIX, torch.float32, 1)
        return self._kernels.pack_int8(weight, scales[:, 0], bias, activation)

    def _int4(
        self, stored: StoredLinear, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        quantisation = self._config.quantisation
        if quantisation is None or quantisation.group_size is None:
            raise WeightsError(f"{stored.names[0]}: int4, but config.json names no group_size")
        group_size = quantisation.group_size
        values = take_fused(
            self._files, stored, SUFFIXES[Scheme.INT4], torch.uint8, stored.num_in // 2
        )
        num_groups = -(-stored.num_in // group_size)
        scales = take_fused(self._files, stored, SCALES_SUFFIX, torch.float32, num_groups)
        weight = QuantisedWeight(Scheme.INT4, values, scales, group_size)
        return self._kernels.pack_int4(weight, bias, activation)

    def _layer_norm(self, prefix: str, name: str | None) -> torch.Tensor | None:
        return None if name is None else self.norm(prefix + name, self._config.hidden_size)

    def _qk_norms(self, prefix: str) -> tuple[PartNorm, ...]:
        """Read the norms of queries, which come first in a row, and of keys, which follow."""
        config = self._config
        num_query, num_key = config.num_heads, config.num_kv_heads
        first_key = num_query * config.head_dim
        match config.query_key_norm:
            case None:
                return ()
            case QueryKeyNorm.EACH_HEAD:
                query, key = Parts(0, num_query), Parts(first_key, num_key)
                widths = config.head_dim, config.head_dim
            case QueryKeyNorm.WHOLE_ROW:
                query, key = Parts(0, 1), Parts(first_key, 1)
                widths = first_key, num_key * config.head_dim
        return (
            PartNorm(query, self.norm(prefix + "q_norm", widths[0])),
            PartNorm(key, self.norm(prefix + "k_norm", widths[1])),
        )

    def _feed_forward(self, index: int) -> FeedForward | Experts:
        config = self._config
        experts = config.layers[index].experts
        if experts is None:
            return self._halves(
                stored_linear.gate_up(config, index), stored_linear.down(config, index)
            )
        stored = stored_experts(experts, index, config.hidden_size)
        return Experts(
            router=self.linear(stored.router),
            experts=tuple(self._halves(expert.gate_up, expert.down) for expert in stored.experts),
            num_chosen=experts.num_chosen,
            is_renormalised=experts.is_renormalised,
            has_shared=experts.shared_width is not None,
        )

    def _halves(self, gate_up: StoredLinear, down: StoredLinear) -> FeedForward:
        return FeedForward(self.linear(gate_up, self._config.activation), self.linear(down))
