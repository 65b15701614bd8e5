"""Quantised folders: what they hold, what they compute, and what is refused."""

import json
import shutil
from dataclasses import replace
from math import log

import pytest
import torch
from safetensors.torch import save_file

from engine.config import EngineConfig, KernelChoice
from engine.errors import RiseTargetError, UnsupportedModelError, WeightsError
from engine.folder import readable_files, stored_dtype, weights_of
from engine.loading import load_engine
from engine.model.config import Quantisation, Scheme
from engine.model.families import read_model_config
from engine.model.weights import open_weights
from engine.perplexity import TextScorer
from engine.quantised import SCALES_SUFFIX, SUFFIXES, QuantisedWeight
from engine.quantize import Lessons, quantise_folder
from engine.rounding import round_int4, round_int8
from engine.sequence import SamplingParams, Sequence
from tests.support.family_models import edit_config, write_family_model

pytestmark = pytest.mark.usefixtures("one_thread")

INT8 = Quantisation(Scheme.INT8, None)
INT4 = Quantisation(Scheme.INT4, 32)
CPU = torch.device("cpu")


def some_texts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (length,), generator=generator).tolist() for length in (40, 7, 64)]


def some_lessons(max_rise=None):
    return Lessons(some_texts(), num_steps=2, max_rise=max_rise)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_family_model(tmp_path_factory.mktemp("source") / "model", "qwen2-yarn")


@pytest.fixture(
    scope="module", params=[(INT8, None), (INT4, None), (INT4, 0.3)], ids=["int8", "int4", "mixed"]
)
def quantised(request, source, tmp_path_factory):
    target = tmp_path_factory.mktemp("target") / "model"
    quantisation, max_rise = request.param
    quantise_folder(source, target, quantisation, some_lessons(max_rise))
    return target


@pytest.fixture(scope="module")
def mixed(source, tmp_path_factory):
    target = tmp_path_factory.mktemp("mixed") / "model"
    quantise_folder(source, target, INT4, some_lessons(max_rise=0.3))
    return target


def rounding_of(folder):
    quantisation = read_model_config(folder).quantisation
    assert quantisation is not None
    return quantisation


def kept_in(folder):
    return rounding_of(folder).kept_in_int8


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
    stated = rounding_of(quantised)

    answers = answers_of(quantised, run_all, KernelChoice.AUTO)

    assert replace(stated, kept_in_int8=()) in {INT8, INT4}
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


def test_a_mixed_folder_names_each_layer_that_is_kept_in_bytes(mixed):
    with open_weights(mixed, CPU) as files:
        in_bytes = {name for name in files.names if files.stored(name).dtype is torch.int8}
        in_half_bytes = {name for name in files.names if files.stored(name).dtype is torch.uint8}

    assert {f"{name}.weight_int8" for name in kept_in(mixed)} == in_bytes
    assert 0 < len(in_bytes) < len(in_half_bytes)


def test_a_mixed_folder_answers_as_its_numbers_say(mixed, tmp_path):
    plain = write_dequantised(mixed, tmp_path / "plain")
    ours, theirs = (
        TextScorer(folder, EngineConfig(kernels=kernels), longest=64).perplexity(some_texts())
        for folder, kernels in [(mixed, KernelChoice.AUTO), (plain, KernelChoice.REFERENCE)]
    )

    assert log(ours) == pytest.approx(log(theirs), rel=0.02)  # rows become bytes in one of them


def test_an_engine_says_how_a_mixed_folder_is_rounded_and_plans_what_it_weighs(mixed):
    facts = load_engine(mixed, EngineConfig(num_blocks=4)).facts

    file_bytes = (mixed / "model.safetensors").stat().st_size
    assert facts.weights == f"int4 in groups of 32, linear layers in int8: {len(kept_in(mixed))}"
    assert facts.memory is not None
    assert 0.9 * file_bytes < facts.memory.weights_bytes < file_bytes  # the file has a header too


def test_the_smaller_the_rise_that_is_allowed_the_more_is_kept(source, mixed, tmp_path):
    quantise_folder(source, tmp_path / "nearer", INT4, some_lessons(max_rise=0.05))

    assert set(kept_in(mixed)) < set(kept_in(tmp_path / "nearer"))


def test_a_rise_that_leaves_nothing_in_half_bytes_is_refused(source, tmp_path):
    with pytest.raises(RiseTargetError, match="take int8"):
        quantise_folder(source, tmp_path / "copy", INT4, some_lessons(max_rise=1e-9))


def test_bytes_that_config_does_not_name_are_refused(mixed, tmp_path):
    copy = shutil.copytree(mixed, tmp_path / "copy")
    stated = json.loads((copy / "config.json").read_text())["quantization_config"]
    edit_config(copy, quantization_config=stated | {"kept_in_int8": []})

    with pytest.raises(WeightsError, match="int8, which config.json does not say"):
        load_engine(copy, EngineConfig(num_blocks=4))


def write_dequantised(folder, target):
    """Write a folder's copy with the weights its numbers stand for."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    group_size = config.pop("quantization_config")["group_size"]
    (target / "config.json").write_text(json.dumps(config))
    with open_weights(folder, CPU) as files:
        tensors = {name: files.stored(name).clone() for name in files.names}
    for scheme, suffix in SUFFIXES.items():
        for name in [name for name in tensors if name.endswith(suffix)]:
            values, scales = tensors.pop(name), tensors.pop(name.replace(suffix, SCALES_SUFFIX))
            size = group_size if scheme is Scheme.INT4 else values.shape[1]
            weight = QuantisedWeight(scheme, values, scales, size).dequantise()
            tensors[name.replace(suffix, "weight")] = weight
    save_file(tensors, target / "model.safetensors")
    return target


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
