"""Small random models of every family, made by transformers' own classes, and their answers.

The weights are wide, so that the best token leads the second by far more than rounding can change.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.tiny_model import write_byte_tokenizer

_SIZES: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
}

# What each model departs in from its family's defaults.
FAMILIES: dict[str, tuple[type[transformers.PreTrainedConfig], dict[str, Any]]] = {
    "llama-llama3": (transformers.LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama-dynamic": (
        transformers.LlamaConfig,
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "mistral": (transformers.MistralConfig, {"sliding_window": 9}),
    "mistral-unbounded": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2-window": (
        transformers.Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen2-yarn": (transformers.Qwen2Config, {"rope_parameters": YARN}),
    "qwen2-yarn-scaled": (
        transformers.Qwen2Config,
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.5, "beta_fast": 8.0}},
    ),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 32}),
    "gemma2": (
        transformers.Gemma2Config,
        {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24},
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 16,
            "sliding_window": 8,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": (transformers.Phi3Config, {"sliding_window": 20}),
    "phi3-long": (
        transformers.Phi3Config,
        {"rope_parameters": LONG, "original_max_position_embeddings": 32},
    ),
    "olmo2": (transformers.Olmo2Config, {}),
    "mixtral": (transformers.MixtralConfig, {"num_local_experts": 6, "sliding_window": 30}),
    "qwen2-moe": (
        transformers.Qwen2MoeConfig,
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3-moe": (
        transformers.Qwen3MoeConfig,
        {
            "head_dim": 32,
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "olmoe": (transformers.OlmoeConfig, {"num_experts": 8, "num_experts_per_tok": 2}),
}


def write_family_model(folder: Path, name: str, **overrides: Any) -> Path:
    """Write a random model with its tokenizer."""
    config_class, changes = FAMILIES[name]
    config = config_class(**(_SIZES | changes | overrides))
    network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _widen(network, torch.Generator().manual_seed(0))
    network.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Replace settings of a written model; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


class TheirModel:
    """A written model as transformers runs it."""

    def __init__(self, folder: Path) -> None:
        self._network = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Score the vocabulary after each token, [T, V]."""
        logits: torch.Tensor = self._network(torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits

    def answer(self, prompt_ids: list[int], num_tokens: int) -> tuple[int, ...]:
        """Answer greedily, computing everything anew for each token: no cache can be wrong."""
        ids = list(prompt_ids)
        for _ in range(num_tokens):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return tuple(ids[len(prompt_ids) :])


def _widen(network: torch.nn.Module, generator: torch.Generator) -> None:
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:  # norms and biases
            parameter.data.add_(noise * 0.3)
        else:
            width = 6.0 if name.startswith("lm_head") else 1.5
            parameter.data.copy_(noise * width / parameter.shape[-1] ** 0.5)
