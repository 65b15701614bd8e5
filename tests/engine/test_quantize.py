"""Quantised folders: what they hold, what they compute, and what is refused."""

import json
from math import log

import pytest
import torch

from engine.config import EngineConfig, KernelChoice
from engine.errors import UnsupportedModelError, WeightsError
from engine.folder import readable_files, stored_dtype, weights_of
from engine.loading import load_engine
from engine.model.config import Quantisation, Scheme
from engine.model.families import read_model_config
from engine.model.weights import open_weights
from engine.perplexity import TextScorer
from engine.quantize import Lessons, quantise_folder
from engine.rounding import round_int4, round_int8
from engine.sequence import SamplingParams, Sequence
from tests.support.family_models import edit_config, write_family_model

INT8 = Quantisation(Scheme.INT8, None)
INT4 = Quantisation(Scheme.INT4, 32)
CPU = torch.device("cpu")


def some_texts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (length,), generator=generator).tolist() for length in (40, 7, 64)]


def some_lessons(num_steps=2):
    return Lessons(some_texts(), num_steps)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_family_model(tmp_path_factory.mktemp("source") / "model", "qwen2-yarn")


@pytest.fixture(scope="module", params=[INT8, INT4], ids=["int8", "int4"])
def quantised(request, source, tmp_path_factory):
    target = tmp_path_factory.mktemp("target") / "model"
    quantise_folder(source, target, request.param, some_lessons())
    return target


def answers_of(folder, run_all, kernels):
    config = EngineConfig(num_blocks=32, max_sequences=4, max_step_tokens=32, kernels=kernels)
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    sequences = [Sequence(str(index), text, sampling) for index, text in enumerate(some_texts())]
    completions = run_all(load_engine(folder, config), sequences)
    return {name: done.token_ids for name, done in completions.items()}


def share_equal(ours, theirs):
    pairs = [pair for name in ours for pair in zip(ours[name], theirs[name], strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def test_a_quantised_folder_runs_and_says_what_it_is(quantised, run_all):
    config = read_model_config(quantised)

    answers = answers_of(quantised, run_all, KernelChoice.AUTO)

    assert config.quantisation in {INT8, INT4}
    assert all(len(answer) == 6 for answer in answers.values())


def test_compiled_and_plain_kernels_answer_alike(quantised, run_all):
    ours = answers_of(quantised, run_all, KernelChoice.AUTO)

    assert share_equal(ours, answers_of(quantised, run_all, KernelChoice.REFERENCE)) > 0.7


def test_linear_layers_are_rounded_and_nothing_else_is(quantised):
    with open_weights(quantised, CPU) as files:
        dtypes = {name: files.stored(name).dtype for name in files.names}

    is_rounded = {name: dtype in {torch.int8, torch.uint8} for name, dtype in dtypes.items()}
    assert sum(is_rounded.values()) == 4 * 7
    assert not is_rounded["model.embed_tokens.weight"]
    assert not is_rounded["lm_head.weight"]
    assert stored_dtype(weights_of(readable_files(quantised))) == "float32"


def test_all_else_in_the_folder_is_copied(source, quantised):
    assert {path.name for path in source.iterdir()} == {path.name for path in quantised.iterdir()}


@pytest.mark.parametrize("family", ["gemma2", "phi3", "olmo2"])
def test_smoothing_and_rounding_to_bytes_keep_what_a_family_says(family, tmp_path):
    folder = write_family_model(tmp_path / "model", family)
    quantise_folder(folder, tmp_path / "int8", INT8, some_lessons())
    config = EngineConfig(kernels=KernelChoice.REFERENCE)

    ours, theirs = (
        TextScorer(one, config, longest=64).perplexity(some_texts())
        for one in (tmp_path / "int8", folder)
    )

    assert log(ours) == pytest.approx(log(theirs), rel=0.02)


def test_a_quantised_folder_is_not_quantised_again(quantised, tmp_path):
    with pytest.raises(UnsupportedModelError, match="already"):
        quantise_folder(quantised, tmp_path / "again", INT8, some_lessons())


def test_quantised_numbers_are_never_taken_for_weights(quantised):
    with open_weights(quantised, CPU) as files:
        name = next(name for name in files.names if name.endswith(("_int8", "_int4")))
        shape = tuple(files.stored(name).shape)

        with pytest.raises(WeightsError, match=name):
            files.take(name, shape, torch.float32)


def test_a_group_size_that_is_not_stated_is_refused(source, tmp_path):
    quantise_folder(source, tmp_path / "int4", INT4, some_lessons())
    stated = json.loads((tmp_path / "int4" / "config.json").read_text())["quantization_config"]
    edit_config(tmp_path / "int4", quantization_config=stated | {"group_size": None})

    with pytest.raises(WeightsError, match="group_size"):
        load_engine(tmp_path / "int4", EngineConfig(num_blocks=4))


def a_layer():
    """Return a weight and inputs of very different strengths that depend on each other."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 96, generator=generator) @ torch.randn(96, 96, generator=generator)
    inputs *= torch.logspace(-1, 1, 96)
    return torch.randn(24, 96, generator=generator), inputs


def error_of(weight, rounded, inputs):
    return ((rounded - weight) @ inputs.T).square().sum() / (weight @ inputs.T).square().sum()


def test_bytes_round_each_output_to_its_own_127_steps():
    weight, _ = a_layer()

    rounded = round_int8(weight)

    assert rounded.values.abs().amax(1).eq(127).all()
    assert ((rounded.dequantise() - weight).abs() <= rounded.scales / 2 * 1.001).all()


@pytest.mark.parametrize("group_size", [32, 64])
def test_half_bytes_chosen_with_the_inputs_at_hand_beat_the_nearest_ones(group_size):
    weight, inputs = a_layer()

    blind = round_int4(weight, torch.eye(96), group_size).dequantise()
    rounded = round_int4(weight, inputs, group_size).dequantise()

    assert error_of(weight, rounded, inputs) < 0.5 * error_of(weight, blind, inputs)
