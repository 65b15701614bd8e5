"""StoredLinear: under which names the parts of one fused layer lie in the weight files.

Owns the names of linear weights, for those who build a decoder and those who rewrite its files.
Must not import torch.
"""

from dataclasses import dataclass
from enum import StrEnum

from engine.model.config import ModelConfig


class Part(StrEnum):
    """The linear layers of a decoder layer."""

    QKV = "qkv"
    ATTENTION_OUT = "attention_out"
    GATE_UP = "gate_up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """Layers with the same input, computed as one; names go without their ".weight"."""

    names: tuple[str, ...]
    num_outs: tuple[int, ...]
    num_in: int
    has_bias: bool = False


def parts_of(config: ModelConfig, index: int) -> dict[Part, StoredLinear]:
    """Return where all linear layers of one layer lie, which has no experts."""
    assert config.layers[index].experts is None, "engine/model/stored_experts.py has those"
    return {
        Part.QKV: qkv(config, index),
        Part.ATTENTION_OUT: attention_out(config, index),
        Part.GATE_UP: gate_up(config, index),
        Part.DOWN: down(config, index),
    }


def qkv(config: ModelConfig, index: int) -> StoredLinear:
    """Return where a layer's queries, keys and values come from."""
    prefix = f"model.layers.{index}.self_attn."
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    if config.is_stored_fused:
        return StoredLinear((prefix + "qkv_proj",), (query + 2 * key,), config.hidden_size)
    return StoredLinear(
        names=tuple(f"{prefix}{name}_proj" for name in "qkv"),
        num_outs=(query, key, key),
        num_in=config.hidden_size,
        has_bias=config.has_qkv_bias,
    )


def attention_out(config: ModelConfig, index: int) -> StoredLinear:
    """Return where a layer's attended values go through."""
    name = f"model.layers.{index}.self_attn.o_proj"
    return StoredLinear((name,), (config.hidden_size,), config.num_heads * config.head_dim)


def gate_up(config: ModelConfig, index: int) -> StoredLinear:
    """Return the first half of a layer's feed-forward part."""
    prefix, width = f"model.layers.{index}.mlp.", config.intermediate_size
    if config.is_stored_fused:
        return StoredLinear((prefix + "gate_up_proj",), (2 * width,), config.hidden_size)
    names = (prefix + "gate_proj", prefix + "up_proj")
    return StoredLinear(names, (width, width), config.hidden_size)


def down(config: ModelConfig, index: int) -> StoredLinear:
    """Return the second half of a layer's feed-forward part."""
    name = f"model.layers.{index}.mlp.down_proj"
    return StoredLinear((name,), (config.hidden_size,), config.intermediate_size)


def head(config: ModelConfig) -> StoredLinear:
    """Return what scores the vocabulary."""
    name = "model.embed_tokens" if config.ties_embeddings else "lm_head"
    return StoredLinear((name,), (config.vocab_size,), config.hidden_size)
