"""A random Llama small enough that the engine's bookkeeping is all there is to measure."""

import json
from math import sqrt
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCAB_SIZE = 256
_HIDDEN = 32
_INNER = 64
_NUM_HEADS = 2
_HEAD_DIM = 16
_NUM_LAYERS = 2


def write_tiny_model(folder: Path) -> None:
    """Write what load_engine reads; nothing with text in it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _NUM_LAYERS,
        "num_attention_heads": _NUM_HEADS,
        "num_key_value_heads": _NUM_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "vocab_size": VOCAB_SIZE,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(_weights(), folder / "model.safetensors")


def _weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def matrix(num_out: int, num_in: int) -> torch.Tensor:
        return torch.randn(num_out, num_in, generator=generator) / sqrt(num_in)

    attention = _NUM_HEADS * _HEAD_DIM
    weights = {
        "model.embed_tokens.weight": matrix(VOCAB_SIZE, _HIDDEN),
        "model.norm.weight": torch.ones(_HIDDEN),
    }
    for index in range(_NUM_LAYERS):
        layer = {
            "self_attn.q_proj": matrix(attention, _HIDDEN),
            "self_attn.k_proj": matrix(attention, _HIDDEN),
            "self_attn.v_proj": matrix(attention, _HIDDEN),
            "self_attn.o_proj": matrix(_HIDDEN, attention),
            "mlp.gate_proj": matrix(_INNER, _HIDDEN),
            "mlp.up_proj": matrix(_INNER, _HIDDEN),
            "mlp.down_proj": matrix(_HIDDEN, _INNER),
            "input_layernorm": torch.ones(_HIDDEN),
            "post_attention_layernorm": torch.ones(_HIDDEN),
        }
        weights |= {f"model.layers.{index}.{name}.weight": value for name, value in layer.items()}
    return weights
