"""Builds a decoder's weights from a model folder, layer by layer.

Owns the names that weight files use and the fusing of what is computed together. A layer's tensors
are packed and their originals dropped before the next layer is read, so loading needs little more
than the weights themselves.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.kernels.interface import AttentionShape, Kernels, Linear, Parts
from engine.model.config import Activation, ModelConfig, QueryKeyNorm
from engine.model.decoder import DecoderLayer, DecoderWeights, PartNorm
from engine.model.rope import RopeTable, rope_table
from engine.model.rope_config import RopeConfig
from engine.model.weights import WeightFiles, open_weights


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
    ropes = {
        rope: rope_table(rope, placement.max_context, placement.device)
        for rope in {layer.rope for layer in config.layers}
    }
    # Rounded as it was in training (transformers, modeling_gemma2.py).
    embedding_scale = torch.tensor(config.embedding_scale, dtype=placement.dtype)
    with open_weights(folder, placement.device) as files:
        builder = _Builder(files, config, kernels, placement.dtype)
        head_name = "model.embed_tokens" if config.ties_embeddings else "lm_head"
        return DecoderWeights(
            embedding=builder.embedding("model.embed_tokens.weight"),
            embedding_scale=float(embedding_scale),
            layers=tuple(builder.layer(index, ropes) for index in range(config.num_layers)),
            final_norm=builder.norm("model.norm", config.hidden_size),
            head=builder.linear([head_name], [config.vocab_size], config.hidden_size),
            score_softcap=config.score_softcap,
            norm_eps=config.norm_eps,
        )


class _Builder:
    """Reads the parts of one model."""

    def __init__(
        self, files: WeightFiles, config: ModelConfig, kernels: Kernels, dtype: torch.dtype
    ) -> None:
        self._files = files
        self._config = config
        self._kernels = kernels
        self._dtype = dtype

    def embedding(self, name: str) -> torch.Tensor:
        """Read the embedding; a copy of its own, so that the file can be closed."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._files.take(name, shape, self._dtype).clone()

    def norm(self, name: str, width: int) -> torch.Tensor:
        """Read a norm's weights; the sum is a copy of its own."""
        stored = self._files.take(f"{name}.weight", (width,), torch.float32)
        return stored + self._config.norm_offset

    def linear(
        self,
        names: list[str],
        num_outs: list[int],
        num_in: int,
        activation: Activation | None = None,
    ) -> Linear:
        """Read the weights of layers with the same input and make one layer of them."""
        weights = [
            self._files.take(f"{name}.weight", (num_out, num_in), self._dtype)
            for name, num_out in zip(names, num_outs, strict=True)
        ]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        return self._kernels.pack(weight, self._bias(names, num_outs), activation)

    def layer(self, index: int, ropes: dict[RopeConfig, RopeTable]) -> DecoderLayer:
        """Read one layer."""
        config = self._config
        prefix = f"model.layers.{index}."
        num_query = config.num_heads * config.head_dim
        return DecoderLayer(
            norm_before_attention=self._layer_norm(prefix, config.norms.before_attention),
            qkv=self._qkv(prefix + "self_attn."),
            qk_norms=self._qk_norms(prefix + "self_attn."),
            attention_out=self.linear(
                [prefix + "self_attn.o_proj"], [config.hidden_size], num_query
            ),
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
            gate_up=self._gate_up(prefix + "mlp."),
            down=self.linear(
                [prefix + "mlp.down_proj"], [config.hidden_size], config.intermediate_size
            ),
            norm_after_feed_forward=self._layer_norm(prefix, config.norms.after_feed_forward),
        )

    def _qkv(self, prefix: str) -> Linear:
        config = self._config
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        names = [f"{prefix}{name}_proj" for name in "qkv"]
        num_outs = [count * config.head_dim for count in counts]
        if config.is_stored_fused:
            names, num_outs = [prefix + "qkv_proj"], [sum(num_outs)]
        return self.linear(names, num_outs, config.hidden_size)

    def _gate_up(self, prefix: str) -> Linear:
        config = self._config
        names = [f"{prefix}{name}_proj" for name in ("gate", "up")]
        num_outs = [config.intermediate_size] * 2
        if config.is_stored_fused:
            names, num_outs = [prefix + "gate_up_proj"], [sum(num_outs)]
        return self.linear(names, num_outs, config.hidden_size, config.activation)

    def _bias(self, names: list[str], num_outs: list[int]) -> torch.Tensor | None:
        """Read the biases that the family has: of queries, keys and values, or none."""
        if not (self._config.has_qkv_bias and names[0].endswith("q_proj")):
            return None
        return torch.cat(
            [
                self._files.take(f"{name}.bias", (num_out,), torch.float32)
                for name, num_out in zip(names, num_outs, strict=True)
            ]
        )

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
