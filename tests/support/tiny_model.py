"""A model folder small enough to be made in a test: random weights, a byte-level tokenizer.

The weights are wide, so that the best token leads the second by far more than rounding can change.
"""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
START, END = "<|start|>", "<|end|>"

TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "vocab_size": 258,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def write_tiny_model(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Write a random Llama; overrides replace settings of TINY_LLAMA."""
    folder.mkdir(parents=True, exist_ok=True)
    config = TINY_LLAMA | overrides
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_random_weights(config, seed), folder / "model.safetensors")
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer with one token for each byte and two control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "bos_token": START}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]

    def matrix(num_out: int, num_in: int) -> torch.Tensor:
        return torch.randn(num_out, num_in, generator=generator) * (1.5 / sqrt(num_in))

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        weights |= {
            prefix + "input_layernorm.weight": torch.rand(hidden, generator=generator) + 0.5,
            prefix + "self_attn.q_proj.weight": matrix(query, hidden),
            prefix + "self_attn.k_proj.weight": matrix(kv, hidden),
            prefix + "self_attn.v_proj.weight": matrix(kv, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, query),
            prefix + "post_attention_layernorm.weight": torch.ones(hidden),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    weights["model.norm.weight"] = torch.ones(hidden)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden) * 4
    return weights
