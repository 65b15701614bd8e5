"""Builds a decoder's weights from a model folder, layer by layer.

Owns the names that weight files use and the fusing of what is computed together. A layer's tensors
are packed and their originals dropped before the next layer is read, so loading needs little more
than the weights themselves.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.kernels.interface import Activation, AttentionShape, Kernels, Linear
from engine.model.config import ModelConfig
from engine.model.decoder import DecoderLayer, DecoderWeights
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
    with open_weights(folder, placement.device) as files:
        builder = _Builder(files, config, kernels, placement.dtype)
        embedding = builder.vector_table("model.embed_tokens.weight")
        head_name = "model.embed_tokens.weight" if config.ties_embeddings else "lm_head.weight"
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(builder.layer(index, ropes) for index in range(config.num_layers)),
            final_norm=builder.norm("model.norm.weight"),
            head=builder.linear([head_name], [config.vocab_size], config.hidden_size),
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

    def vector_table(self, name: str) -> torch.Tensor:
        """Read the embedding; a copy of its own, so that the file can be closed."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._files.take(name, shape, self._dtype).clone()

    def norm(self, name: str) -> torch.Tensor:
        """Read a norm's weights."""
        return self._files.take(name, (self._config.hidden_size,), torch.float32).clone()

    def linear(
        self,
        names: list[str],
        num_outs: list[int],
        num_in: int,
        activation: Activation | None = None,
    ) -> Linear:
        """Read the weights of layers with the same input and make one layer of them."""
        weights = [
            self._files.take(name, (num_out, num_in), self._dtype)
            for name, num_out in zip(names, num_outs, strict=True)
        ]
        return self._kernels.pack(torch.cat(weights), None, activation)

    def layer(self, index: int, ropes: dict[RopeConfig, RopeTable]) -> DecoderLayer:
        """Read one layer."""
        config = self._config
        prefix = f"model.layers.{index}."
        num_query = config.num_heads * config.head_dim
        num_kv = config.num_kv_heads * config.head_dim
        return DecoderLayer(
            attention_norm=self.norm(prefix + "input_layernorm.weight"),
            qkv=self.linear(
                [f"{prefix}self_attn.{name}_proj.weight" for name in "qkv"],
                [num_query, num_kv, num_kv],
                config.hidden_size,
            ),
            attention_out=self.linear(
                [prefix + "self_attn.o_proj.weight"], [config.hidden_size], num_query
            ),
            shape=AttentionShape(
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                scale=config.attention_scale,
                window=config.layers[index].window,
                softcap=None,
            ),
            rope=ropes[config.layers[index].rope],
            feed_forward_norm=self.norm(prefix + "post_attention_layernorm.weight"),
            gate_up=self.linear(
                [f"{prefix}mlp.{name}_proj.weight" for name in ("gate", "up")],
                [config.intermediate_size] * 2,
                config.hidden_size,
                Activation.SILU,
            ),
            down=self.linear(
                [prefix + "mlp.down_proj.weight"], [config.hidden_size], config.intermediate_size
            ),
        )
