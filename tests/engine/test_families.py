"""Every family: logits and greedy answers are transformers', and what is not known is refused."""

from dataclasses import asdict
from functools import partial

import pytest
import torch

from engine.config import ComputeType, EngineConfig, KernelChoice
from engine.errors import UnsupportedModelError
from engine.folder import MalformedFileError
from engine.kernels.interface import RaggedBatch
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton.kernels import TritonKernels
from engine.kv_cache import CacheFormat, KvCache
from engine.loading import load_engine
from engine.model.build import Placement, load_decoder_weights
from engine.model.config import Quantisation, Scheme
from engine.model.decoder import Decoder
from engine.model.families import QUANT_METHOD, read_model_config
from engine.sequence import SamplingParams, Sequence
from tests.support.family_models import (
    FAMILIES,
    TheirModel,
    edit_config,
    write_family_model,
)

CPU = torch.device("cpu")
PLAIN = ReferenceKernels(torch.float32, is_packed=False)
INT8 = Quantisation(Scheme.INT8, group_size=None)

# Logits are a few tens wide; float32 sums of other orders differ by some 1e-5.
assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=2e-4)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    folders = {}

    def make(name):
        if name not in folders:
            folders[name] = write_family_model(tmp_path_factory.mktemp("family") / name, name)
        return folders[name]

    return make


def some_ids(length):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(256, (length,), generator=generator).tolist()


@torch.inference_mode()
def our_logits(folder, token_ids, max_context, kernels=PLAIN):
    """Score all rows of one sequence, whose blocks have an order of their own and hold no zeros."""
    config = read_model_config(folder)
    weights = load_decoder_weights(
        folder, config, kernels, Placement(torch.float32, CPU, max_context)
    )
    block_size, num_tokens = 4, len(token_ids)
    num_blocks = -(-num_tokens // block_size)
    blocks = CacheFormat(block_size, torch.float32, kernels.cache_layout)
    cache = KvCache(config, num_blocks, blocks, CPU)
    for layer in cache.layers:
        layer.keys.fill_(float("nan"))
        layer.values.fill_(float("nan"))
    positions = torch.arange(num_tokens, dtype=torch.int32)
    block_ids = torch.arange(num_blocks, dtype=torch.int32).flip(0)
    batch = RaggedBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int32),
        positions=positions,
        slots=block_ids[positions // block_size] * block_size + positions % block_size,
        row_starts=torch.tensor([0, num_tokens], dtype=torch.int32),
        context_lengths=torch.tensor([num_tokens], dtype=torch.int32),
        block_starts=torch.tensor([0, num_blocks], dtype=torch.int32),
        block_ids=block_ids,
        sampled_rows=positions,
    )
    decoder = Decoder(weights, kernels, cache)
    return decoder.scores(decoder.forward(batch))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(folder_of, name):
    folder = folder_of(name)
    token_ids = some_ids(60)

    logits = our_logits(folder, token_ids, max_context=128)

    assert_close(logits, TheirModel(folder).logits(token_ids))


# Between them they need every operation; interpreted, a family takes seconds.
@pytest.mark.parametrize("name", ["gemma2", "olmo2", "qwen2", "qwen2-moe"])
def test_the_kernels_of_a_gpu_compute_families_as_the_plain_ones_do(folder_of, name):
    folder = folder_of(name)
    token_ids = some_ids(12)

    logits = our_logits(folder, token_ids, 128, TritonKernels(torch.float32))

    assert_close(logits, our_logits(folder, token_ids, max_context=128))


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_answers_are_those_of_transformers(folder_of, name, run_all):
    folder = folder_of(name)
    config = EngineConfig(
        dtype=ComputeType.FLOAT32, num_blocks=64, max_sequences=4, max_step_tokens=24
    )
    prompts = {str(length): some_ids(length) for length in (33, 75)}
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    theirs = TheirModel(folder)

    answers = run_all(
        load_engine(folder, config),
        [Sequence(name, prompt, sampling) for name, prompt in prompts.items()],
    )

    assert {name: done.token_ids for name, done in answers.items()} == {
        name: theirs.answer(prompt, num_tokens=8) for name, prompt in prompts.items()
    }


@pytest.mark.parametrize("name", ["mistral", "phi3"])
@pytest.mark.parametrize("kernels", [KernelChoice.NATIVE, KernelChoice.REFERENCE])
@pytest.mark.usefixtures("compiled_kernels")
def test_a_cache_smaller_than_the_text_holds_what_a_window_sees(folder_of, run_all, name, kernels):
    folder = folder_of(name)
    config = EngineConfig(
        dtype=ComputeType.FLOAT32,
        kernels=kernels,
        block_size=4,
        num_blocks=22,  # 88 tokens, for two sequences of 75 and 93
        max_sequences=2,
        max_step_tokens=8,
    )
    prompts = {str(length): some_ids(length) for length in (65, 83)}
    sampling = SamplingParams(max_tokens=10, ignore_eos=True)
    theirs = TheirModel(folder)

    answers = run_all(
        load_engine(folder, config),
        [Sequence(name, prompt, sampling) for name, prompt in prompts.items()],
    )

    assert {name: done.token_ids for name, done in answers.items()} == {
        name: theirs.answer(prompt, num_tokens=10) for name, prompt in prompts.items()
    }
    assert all(done.num_preemptions == 0 for done in answers.values())


def test_a_context_within_the_original_one_takes_the_short_factors(folder_of):
    folder = folder_of("phi3-long")
    token_ids = some_ids(32)

    logits = our_logits(folder, token_ids, max_context=32)

    assert_close(logits, TheirModel(folder).logits(token_ids))


def test_older_ways_of_writing_rotations_down_mean_the_same(tmp_path):
    folder = write_family_model(tmp_path / "model", "gemma3")
    before = our_logits(folder, some_ids(40), max_context=128)

    edit_config(
        folder,
        rope_parameters=None,
        layer_types=None,
        sliding_window_pattern=3,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"type": "linear", "factor": 8.0},
    )

    assert torch.equal(our_logits(folder, some_ids(40), max_context=128), before)


def test_the_first_name_of_long_rotations_is_understood(tmp_path):
    folder = write_family_model(tmp_path / "model", "phi3-long")
    before = read_model_config(folder)
    edit_config(
        folder,
        rope_parameters=None,
        rope_theta=10000.0,
        partial_rotary_factor=0.75,
        rope_scaling={
            "type": "su",
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
        },
    )

    assert read_model_config(folder) == before


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("olmo2", {"model_type": "olmo3"}, "olmo3"),
        ("olmo2", {"architectures": ["Olmo2ForSequenceClassification"]}, "SequenceClassification"),
        ("olmo2", {"model_type": "granitemoe"}, "granitemoe"),
        ("olmo2", {"hidden_act": "relu"}, "relu"),
        ("olmo2", {"attention_bias": True}, "attention_bias"),
        ("olmo2", {"rope_parameters": {"rope_type": "spiral"}}, "spiral"),
        ("olmo2", {"quantization_config": {"quant_method": "awq"}}, "awq"),
        ("gemma2", {"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types"),
        ("qwen2-moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
        (
            "mixtral",
            {"quantization_config": asdict(INT8) | {"quant_method": QUANT_METHOD}},
            "experts with quantised weights",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path, name, changes, reason):
    folder = write_family_model(tmp_path / "model", name)
    edit_config(folder, **changes)

    with pytest.raises(UnsupportedModelError, match=reason):
        read_model_config(folder)


def test_more_experts_for_a_token_than_there_are_is_no_configuration(tmp_path):
    folder = write_family_model(tmp_path / "model", "olmoe")
    edit_config(folder, num_experts_per_tok=9)

    with pytest.raises(MalformedFileError, match="num_experts_per_tok is 9, of 8 experts"):
        read_model_config(folder)


@pytest.mark.parametrize("missing", ["hidden_size", "rms_norm_eps", "max_position_embeddings"])
def test_a_configuration_that_leaves_out_a_size_is_refused(tmp_path, missing):
    folder = write_family_model(tmp_path / "model", "olmo2")
    edit_config(folder, **{missing: None})

    with pytest.raises(MalformedFileError, match=missing):
        read_model_config(folder)
