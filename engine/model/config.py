"""ModelConfig: what the decoder has to know about a model, read from its config.json.

Owns the translation of every supported family into one description of a decoder, so that no other
file asks which family it runs. What is not understood is refused by name: a setting that were
ignored would give wrong text silently. Must not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.folder import read_config, read_json
from engine.model.rope_config import RopeConfig, read_rope


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ between the layers of one model; window None sees everything before."""

    window: int | None
    rope: RopeConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder, whatever its family calls things."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int
    attention_scale: float
    layers: tuple[LayerConfig, ...]
    ties_embeddings: bool
    eos_token_ids: frozenset[int]

    @property
    def num_layers(self) -> int:
        """Count the layers."""
        return len(self.layers)


def read_model_config(folder: Path) -> ModelConfig:
    """Read a model folder's configuration.

    Raise UnsupportedModelError for what the decoder does not do.
    """
    return model_config(read_config(folder / "config.json"), read_eos_token_ids(folder))


def model_config(config: Mapping[str, Any], eos_token_ids: frozenset[int]) -> ModelConfig:
    """Translate the content of a config.json."""
    family = config.get("model_type")
    if family != "llama":
        raise UnsupportedModelError(f"model_type {family!r}")
    _require(config, "hidden_act", "silu")
    _require(config, "attention_bias", allowed=False)
    _require(config, "mlp_bias", allowed=False)
    num_heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // num_heads)
    layer = LayerConfig(window=None, rope=read_rope(config, head_dim))
    return ModelConfig(
        family=family,
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        norm_eps=float(config["rms_norm_eps"]),
        max_context=int(config["max_position_embeddings"]),
        attention_scale=head_dim**-0.5,
        layers=(layer,) * int(config["num_hidden_layers"]),
        ties_embeddings=bool(config.get("tie_word_embeddings", False)),
        eos_token_ids=eos_token_ids,
    )


def read_eos_token_ids(folder: Path) -> frozenset[int]:
    """Return the tokens that end an answer.

    What generation_config.json says, where there is one, goes before config.json.
    """
    path = folder / "generation_config.json"
    declared = read_json(path).get("eos_token_id") if path.exists() else None
    if declared is None:
        declared = read_json(folder / "config.json").get("eos_token_id")
    if declared is None:
        return frozenset()
    return frozenset([declared] if isinstance(declared, int) else declared)


def _require(config: Mapping[str, Any], name: str, allowed: object) -> None:
    value = config.get(name, allowed)
    if value != allowed:
        raise UnsupportedModelError(f"{name} {value!r}")
