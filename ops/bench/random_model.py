"""Random Llamas of known shapes: the bench needs their work, not their answers.

Weights are wide, so that a best token leads the second by more than rounding changes.
"""

import json
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import torch
from safetensors.torch import save_file

_HEAD_GAIN = 4.0


@dataclass(frozen=True, slots=True)
class RandomShape:
    """A Llama with a tied head."""

    vocab_size: int
    hidden_size: int
    inner_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    max_context: int


# So small that the engine's bookkeeping is all there is to measure.
TINY = RandomShape(256, 32, 64, 2, 2, 16, num_layers=2, max_context=512)
# As SmolLM2-135M and Llama-3.2-1B are.
SMALL = RandomShape(49152, 576, 1536, 9, 3, 64, num_layers=30, max_context=8192)
LARGE = RandomShape(128256, 2048, 8192, 32, 8, 64, num_layers=16, max_context=8192)


def write_random_model(
    folder: Path, shape: RandomShape, dtype: torch.dtype = torch.float32
) -> None:
    """Write what load_engine and transformers read; nothing with text in it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.inner_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_context,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = {name: weight.to(dtype) for name, weight in _weights(shape).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _weights(shape: RandomShape) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def matrix(num_out: int, num_in: int) -> torch.Tensor:
        return torch.randn(num_out, num_in, generator=generator) / sqrt(num_in)

    hidden, inner = shape.hidden_size, shape.inner_size
    query, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    weights = {
        "model.embed_tokens.weight": matrix(shape.vocab_size, hidden),
        "model.norm.weight": torch.full((hidden,), _HEAD_GAIN),
    }
    for index in range(shape.num_layers):
        layer = {
            "self_attn.q_proj": matrix(query, hidden),
            "self_attn.k_proj": matrix(kv, hidden),
            "self_attn.v_proj": matrix(kv, hidden),
            "self_attn.o_proj": matrix(hidden, query),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
            "input_layernorm": torch.ones(hidden),
            "post_attention_layernorm": torch.ones(hidden),
        }
        weights |= {f"model.layers.{index}.{name}.weight": value for name, value in layer.items()}
    return weights
