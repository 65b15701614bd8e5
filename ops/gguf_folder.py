"""From a GGUF file to a model folder, for the one kind of file the demonstration model comes in.

Owns how GGUF names, orders and stores what a Llama-family folder holds. Knows nothing of where
files come from. Read directly and not through transformers, which needs accelerate to do it, takes
three times the time and memory, and leaves the digit rule out of the tokenizer; the weights are bit
for bit those that it reads.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from gguf.gguf_reader import ReaderTensor

# From llama.cpp's names (gguf-py, tensor_mapping.py) to those of a Llama model folder.
_MODEL_WEIGHTS = {"token_embd": "embed_tokens", "output_norm": "norm"}
_LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, made: Path) -> None:
    """Turn the Llama file `gguf`, with a tokenizer of smollm's kind, into a new folder `made`."""
    # Imported here: machines that only serve have no gguf.
    from gguf import GGUFReader

    made.mkdir()
    source = GGUFReader(gguf)
    settings = {name: field.contents() for name, field in source.fields.items()}
    (made / "config.json").write_text(json.dumps(_config(settings), indent=2) + "\n")
    (made / "generation_config.json").write_text(
        json.dumps(_special_ids(settings), indent=2) + "\n"
    )
    _write_weights(source.tensors, settings, made / "model.safetensors")
    _write_tokenizer(settings, made)


# A GGUF file's settings are of many types, told only by its header, hence Any.
def _config(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": settings["llama.embedding_length"],
        "intermediate_size": settings["llama.feed_forward_length"],
        "num_hidden_layers": settings["llama.block_count"],
        "num_attention_heads": settings["llama.attention.head_count"],
        "num_key_value_heads": settings["llama.attention.head_count_kv"],
        "head_dim": settings["llama.rope.dimension_count"],
        "max_position_embeddings": settings["llama.context_length"],
        "rms_norm_eps": round(
            settings["llama.attention.layer_norm_rms_epsilon"], 9
        ),  # kept in 32 bits: 9.99999975e-06
        "rope_parameters": {"rope_type": "default", "rope_theta": settings["llama.rope.freq_base"]},
        "vocab_size": settings["llama.vocab_size"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **_special_ids(settings),
    }


def _special_ids(settings: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": settings["tokenizer.ggml.bos_token_id"],
        "eos_token_id": settings["tokenizer.ggml.eos_token_id"],
        "pad_token_id": settings["tokenizer.ggml.padding_token_id"],
    }


def _write_weights(tensors: Iterable["ReaderTensor"], settings: dict[str, Any], path: Path) -> None:
    import torch
    from gguf import dequantize
    from safetensors.torch import save_file

    heads = {
        "attn_q": settings["llama.attention.head_count"],
        "attn_k": settings["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in tensors:
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        name, kind = _weight_name(tensor.name)
        if kind in heads:
            weight = _halves_from_pairs(weight, heads[kind])
        weights[name] = weight.to(torch.bfloat16).contiguous()
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # save_file leaves it to its owner alone; a worker may run as another user


def _weight_name(name: str) -> tuple[str, str]:
    """Translate a GGUF tensor's name into the Llama family's, with its kind."""
    match name.split("."):
        case ["blk", layer, kind, "weight"]:
            return f"model.layers.{layer}.{_LAYER_WEIGHTS[kind]}.weight", kind
        case [kind, "weight"]:
            return f"model.{_MODEL_WEIGHTS[kind]}.weight", kind
        case _:
            raise ValueError(f"unknown tensor {name}")


def _halves_from_pairs(weight: "torch.Tensor", num_heads: int) -> "torch.Tensor":
    """Reorder each head's rows from GGUF's rotary pairs to the halves that Llama folders use."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)  # [heads, D/2, 2, M]
    return pairs.transpose(1, 2).reshape(rows, columns)


def _write_tokenizer(settings: dict[str, Any], made: Path) -> None:
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = settings["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in settings["tokenizer.ggml.merges"]]
    kinds = settings["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    # The file names its pre-tokenizer "smollm": single digits, then GPT-2's.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == TokenType.CONTROL
        ]
    )
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "chat_template.jinja").write_text(settings["tokenizer.chat_template"])
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": settings["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "bos_token": tokens[settings["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[settings["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[settings["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[settings["tokenizer.ggml.unknown_token_id"]],
    }
    (made / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
