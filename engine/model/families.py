"""The families of decoders that can be run, read from their config.json.

One short function for each family says how it departs from Llama. What is not understood is refused
by name: a setting that were ignored would give wrong text silently. Must not import torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import ModelFolderError, UnsupportedModelError
from engine.folder import CONFIG_NAME, MalformedFileError, read_config, read_json
from engine.model.config import (
    Activation,
    LayerConfig,
    ModelConfig,
    NormNames,
    Quantisation,
    QueryKeyNorm,
    Scheme,
)
from engine.model.experts_config import ExpertNames, ExpertsConfig, read_experts, sparse_layers
from engine.model.rope_config import RopeConfig, read_rope

QUANT_METHOD = "promptmill"  # in quantization_config: weights rounded by engine/quantize.py

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
_GEMMA_NORMS = NormNames(
    before_attention="input_layernorm",
    after_attention="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
)
_MIXTRAL_NAMES = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")
_OLMO2_NORMS = NormNames(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_feed_forward=None,
    after_feed_forward="post_feedforward_layernorm",
)


def read_model_config(folder: Path) -> ModelConfig:
    """Read a model folder's configuration.

    Raise UnsupportedModelError for what the decoder does not do, MalformedFileError for what is no
    configuration at all.
    """
    config = read_config(folder / CONFIG_NAME)
    try:
        return model_config(config, read_eos_token_ids(folder))
    except ModelFolderError:
        raise
    except KeyError as error:
        raise MalformedFileError(CONFIG_NAME, f"{error} is missing") from error
    except (TypeError, ValueError) as error:
        raise MalformedFileError(CONFIG_NAME, str(error)) from error


def model_config(config: Mapping[str, Any], eos_token_ids: frozenset[int]) -> ModelConfig:
    """Translate the content of a config.json."""
    model, quantisation = _of_family(config), _quantisation(config)
    if quantisation is not None and model.has_experts:
        raise UnsupportedModelError("experts with quantised weights")
    return replace(model, eos_token_ids=eos_token_ids, quantisation=quantisation)


def read_eos_token_ids(folder: Path) -> frozenset[int]:
    """Return the tokens that end an answer.

    What generation_config.json says, where there is one, goes before config.json.
    """
    path = folder / "generation_config.json"
    declared = read_json(path).get("eos_token_id") if path.exists() else None
    if declared is None:
        declared = read_json(folder / CONFIG_NAME).get("eos_token_id")
    if declared is None:
        return frozenset()
    return frozenset([declared] if isinstance(declared, int) else declared)


def _of_family(config: Mapping[str, Any]) -> ModelConfig:
    families = {
        ("llama", "LlamaForCausalLM"): _llama,
        ("mistral", "MistralForCausalLM"): _mistral,
        ("mixtral", "MixtralForCausalLM"): _mixtral,
        ("qwen2", "Qwen2ForCausalLM"): _qwen2,
        ("qwen2_moe", "Qwen2MoeForCausalLM"): _qwen2_moe,
        ("qwen3", "Qwen3ForCausalLM"): _qwen3,
        ("qwen3_moe", "Qwen3MoeForCausalLM"): _qwen3_moe,
        ("gemma2", "Gemma2ForCausalLM"): _gemma2,
        ("gemma3_text", "Gemma3ForCausalLM"): _gemma3,
        ("phi3", "Phi3ForCausalLM"): _phi3,
        ("olmo2", "Olmo2ForCausalLM"): _olmo2,
        ("olmoe", "OlmoeForCausalLM"): _olmoe,
    }
    family, architectures = config.get("model_type"), config.get("architectures")
    read = families.get((str(family), *(architectures or ())))
    if read is None:
        raise UnsupportedModelError(f"model_type {family!r} with architectures {architectures}")
    return read(config)


def _llama(config: Mapping[str, Any]) -> ModelConfig:
    _require(config, "attention_bias", allowed=False)
    _require(config, "mlp_bias", allowed=False)
    num_heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // num_heads)
    layer = LayerConfig(window=None, rope=read_rope(config, head_dim))
    return ModelConfig(
        family=str(config["model_type"]),
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
        eos_token_ids=frozenset(),
        activation=_activation(config),
    )


def _mistral(config: Mapping[str, Any]) -> ModelConfig:
    """Every layer may have a window."""
    _require(config, "layer_types", None)
    return _with_window(_llama(config), config.get("sliding_window"))


def _qwen2(config: Mapping[str, Any]) -> ModelConfig:
    """Queries, keys and values have a bias; the upper layers may have a window."""
    return replace(_qwen(config), has_qkv_bias=True)


def _qwen3(config: Mapping[str, Any]) -> ModelConfig:
    """Each query and key head is normalised; the upper layers may have a window."""
    return replace(_qwen(config), query_key_norm=QueryKeyNorm.EACH_HEAD)


def _qwen(config: Mapping[str, Any]) -> ModelConfig:
    model = _llama(config)
    if not config.get("use_sliding_window", False):
        return model
    first_windowed = int(config["max_window_layers"])
    kinds = config.get("layer_types") or [
        "sliding_attention" if index >= first_windowed else "full_attention"
        for index in range(model.num_layers)
    ]
    return _with_layer_kinds(model, kinds, config, model.layers[0].rope)


def _gemma2(config: Mapping[str, Any]) -> ModelConfig:
    """Norms before and after each part, softcaps, and a window in every other layer."""
    model = _gemma(config)
    kinds = config.get("layer_types") or _alternating(model.num_layers, 2)
    return _with_layer_kinds(model, kinds, config, model.layers[0].rope)


def _gemma3(config: Mapping[str, Any]) -> ModelConfig:
    """As Gemma 2, with normalised heads and a rotation of its own where there is a window."""
    _require(config, "use_bidirectional_attention", allowed=False)
    full, sliding = _gemma3_rotations(config)
    model = _gemma({**config, "rope_parameters": full})
    pattern = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern", 6))
    kinds = config.get("layer_types") or _alternating(model.num_layers, pattern)
    model = _with_layer_kinds(
        model, kinds, config, read_rope({**config, "rope_parameters": sliding}, model.head_dim)
    )
    return replace(model, query_key_norm=QueryKeyNorm.EACH_HEAD)


def _gemma(config: Mapping[str, Any]) -> ModelConfig:
    model = _llama({"tie_word_embeddings": True, **config})
    return replace(
        model,
        norms=_GEMMA_NORMS,
        norm_offset=1.0,
        embedding_scale=model.hidden_size**0.5,
        attention_scale=float(config["query_pre_attn_scalar"]) ** -0.5,
        attention_softcap=config.get("attn_logit_softcapping"),
        score_softcap=config.get("final_logit_softcapping"),
    )


def _gemma3_rotations(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what rotates the full and the windowed layers, from either way of writing it down."""
    parameters = config.get("rope_parameters") or {}
    if "full_attention" in parameters:
        return parameters["full_attention"], parameters["sliding_attention"]
    full = {"rope_theta": config.get("rope_theta", 1e6)} | (config.get("rope_scaling") or {})
    return full, {"rope_theta": config.get("rope_local_base_freq", 1e4)}


def _phi3(config: Mapping[str, Any]) -> ModelConfig:
    """Weights are stored fused, and every layer may have a window."""
    model = _with_window(_llama(config), config.get("sliding_window"))
    return replace(model, is_stored_fused=True)


def _olmo2(config: Mapping[str, Any]) -> ModelConfig:
    """Norms come after each part, and all of a row's query or key heads are normalised as one."""
    return replace(_llama(config), norms=_OLMO2_NORMS, query_key_norm=QueryKeyNorm.WHOLE_ROW)


def _mixtral(config: Mapping[str, Any]) -> ModelConfig:
    """As Mistral, with experts under names of their own."""
    model = _mistral(config)
    experts = read_experts(config, model.intermediate_size)
    experts = replace(experts, is_renormalised=True, names=_MIXTRAL_NAMES)
    return _with_experts(model, experts, config)


def _qwen2_moe(config: Mapping[str, Any]) -> ModelConfig:
    """As Qwen2, with experts and a shared one."""
    _require(config, "use_sliding_window", allowed=False)
    model = replace(_llama(config), has_qkv_bias=bool(config.get("qkv_bias", True)))
    experts = read_experts(config, int(config["moe_intermediate_size"]))
    shared_width = int(config["shared_expert_intermediate_size"])
    return _with_experts(model, replace(experts, shared_width=shared_width), config)


def _qwen3_moe(config: Mapping[str, Any]) -> ModelConfig:
    """As Qwen3, with experts."""
    _require(config, "use_sliding_window", allowed=False)
    model = replace(_llama(config), query_key_norm=QueryKeyNorm.EACH_HEAD)
    experts = read_experts(config, int(config["moe_intermediate_size"]))
    return _with_experts(model, experts, config)


def _olmoe(config: Mapping[str, Any]) -> ModelConfig:
    """Queries and keys are normalised as in OLMo 2, all else is Llama's, with experts."""
    _require(config, "clip_qkv", None)
    model = replace(_llama(config), query_key_norm=QueryKeyNorm.WHOLE_ROW)
    return _with_experts(model, read_experts(config, model.intermediate_size), config)


def _with_experts(
    model: ModelConfig, experts: ExpertsConfig, config: Mapping[str, Any]
) -> ModelConfig:
    sparse = sparse_layers(config, model.num_layers)
    layers = (
        replace(layer, experts=experts if index in sparse else None)
        for index, layer in enumerate(model.layers)
    )
    return replace(model, layers=tuple(layers))


def _with_window(model: ModelConfig, window: int | None) -> ModelConfig:
    return replace(model, layers=tuple(replace(layer, window=window) for layer in model.layers))


def _with_layer_kinds(
    model: ModelConfig, kinds: list[str], config: Mapping[str, Any], windowed_rope: RopeConfig
) -> ModelConfig:
    if len(kinds) != model.num_layers:
        raise MalformedFileError(CONFIG_NAME, "layer_types must name each layer's kind")
    full = model.layers[0]
    windowed = LayerConfig(int(config["sliding_window"]), windowed_rope)
    return replace(model, layers=tuple(_layer_of(kind, full, windowed) for kind in kinds))


def _layer_of(kind: str, full: LayerConfig, windowed: LayerConfig) -> LayerConfig:
    match kind:
        case "full_attention":
            return full
        case "sliding_attention":
            return windowed
        case _:
            raise UnsupportedModelError(f"attention kind {kind!r}")


def _alternating(num_layers: int, pattern: int) -> list[str]:
    """Name kinds: the last of each `pattern` layers sees everything."""
    return [
        "sliding_attention" if (index + 1) % pattern else "full_attention"
        for index in range(num_layers)
    ]


def _activation(config: Mapping[str, Any]) -> Activation:
    name = config.get("hidden_activation") or config.get("hidden_act")
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(f"activation {name!r}")
    return _ACTIVATIONS[name]


def _quantisation(config: Mapping[str, Any]) -> Quantisation | None:
    stated = config.get("quantization_config")
    if stated is None:
        return None
    if stated.get("quant_method") != QUANT_METHOD:
        raise UnsupportedModelError(f"weights quantised by {stated.get('quant_method')!r}")
    kept_in_int8 = tuple(str(name) for name in stated.get("kept_in_int8", ()))
    return Quantisation(Scheme(stated["scheme"]), stated["group_size"], kept_in_int8)


def _require(config: Mapping[str, Any], name: str, allowed: object) -> None:
    value = config.get(name)
    if value is not None and value != allowed:
        raise UnsupportedModelError(f"{name} {value!r}")
