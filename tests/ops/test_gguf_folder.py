import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.registry import Provenance, write_manifest
from ops.gguf_folder import convert

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 16, 4, 2, 4, 2
LETTERS = ["1", "2", "Ġ", "a", "b", "ĠĠ", "ab"]
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def weights():
    """Make random weights under the names of a Llama folder, exact in bfloat16."""
    make = torch.Generator().manual_seed(7)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=make).to(torch.bfloat16)

    made = {
        "model.embed_tokens.weight": random(len(CONTROLS + LETTERS), HIDDEN),
        "model.norm.weight": random(HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        made |= {
            f"{prefix}.input_layernorm.weight": random(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.post_attention_layernorm.weight": random(HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": random(32, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": random(32, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": random(HIDDEN, 32),
        }
    return made


@pytest.fixture(scope="module")
def folder(weights, tmp_path_factory):
    """Write the weights as a GGUF file, as llama.cpp's converter would, and convert it back."""
    root = tmp_path_factory.mktemp("gguf")
    write_gguf(root / "tiny.gguf", weights)
    convert(root / "tiny.gguf", root / "tiny")
    return root / "tiny"


def test_every_weight_comes_back_bit_for_bit_under_its_folder_name(folder, weights):
    converted = load_file(folder / "model.safetensors")

    assert converted.keys() == weights.keys()
    assert [name for name in weights if not torch.equal(converted[name], weights[name])] == []


def test_a_converted_folder_can_be_registered(folder):
    manifest = write_manifest(folder, Provenance("tiny"))

    assert (manifest.dtype, manifest.context_length) == ("bfloat16", 64)
    assert manifest.chat_template_sha256 is not None


def test_digits_stand_alone_and_blanks_before_them_stay_together(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    assert tokenizer.encode("ab  12").tokens == ["ab", "ĠĠ", "1", "2"]


def test_control_tokens_are_special(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    assert tokenizer.encode("<|im_start|>ab<|im_end|>").ids == [1, 9, 2]
    assert tokenizer.decode([1, 9, 2]) == "ab"


def write_gguf(path, weights):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(32)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(CONTROLS + LETTERS))
    writer.add_token_list(CONTROLS + LETTERS)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control] * len(CONTROLS) + [normal] * len(LETTERS))
    writer.add_token_merges(["Ġ Ġ", "a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, weight in weights.items():
        array = weight.float().numpy()
        if "q_proj" in name:
            array = in_pairs(array, HEADS)
        if "k_proj" in name:
            array = in_pairs(array, KV_HEADS)
        writer.add_tensor(str(names.get_name(name, try_suffixes=(".weight",))), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_pairs(array, num_heads):
    """Order a head's rows as llama.cpp wants them (convert_hf_to_gguf.py, LlamaModel.permute)."""
    rows, columns = array.shape
    halves = array.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
