"""Learned rounding: it brings answers nearer to the full model's."""

from dataclasses import replace

import pytest
import torch

from engine.calibration import batch_of
from engine.kernels.reference import ReferenceKernels
from engine.kv_cache import CacheFormat, KvCache
from engine.model.build import Placement, load_decoder_weights
from engine.model.config import Quantisation, Scheme
from engine.model.decoder import Decoder
from engine.model.families import read_model_config
from engine.quantize import Lessons, quantise_folder
from tests.support.family_models import write_family_model

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def some_texts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(256, (length,), generator=generator).tolist() for length in (30, 48, 21)]


def log_probabilities(folder, kernels):
    """Return what a model foretells at each token of the texts."""
    batch = batch_of(some_texts())
    config = read_model_config(folder)
    weights = load_decoder_weights(folder, config, kernels, Placement(torch.bfloat16, CPU, 64))
    cache = KvCache(config, len(batch.block_ids), CacheFormat(16, torch.bfloat16), CPU)
    decoder = Decoder(weights, kernels, cache)
    hidden = decoder.forward(replace(batch, sampled_rows=torch.arange(len(batch.token_ids))))
    return decoder.scores(hidden).log_softmax(-1)


def serving():
    return ReferenceKernels(torch.bfloat16, is_packed=False)


def test_learning_brings_answers_nearer_to_the_full_models(tmp_path):
    folder = write_family_model(tmp_path / "model", "llama-llama3")
    full = log_probabilities(folder, serving())
    distances = []
    for num_steps in (1, 25):
        copy = tmp_path / f"{num_steps}-steps"
        lessons = Lessons(some_texts(), num_steps, max_rise=None)
        quantise_folder(folder, copy, Quantisation(Scheme.INT4, 48), lessons)
        found = log_probabilities(copy, serving())
        distances.append(
            torch.nn.functional.kl_div(found, full, reduction="batchmean", log_target=True)
        )

    assert distances[1] < 0.9 * distances[0]


def test_the_same_lessons_keep_and_teach_the_same(tmp_path):
    folder = write_family_model(tmp_path / "model", "gemma2")
    for name in ("one", "other"):
        lessons = Lessons(some_texts(), num_steps=3, max_rise=0.01)
        quantise_folder(folder, tmp_path / name, Quantisation(Scheme.INT4, 16), lessons)

    configs = [(tmp_path / name / "config.json").read_text() for name in ("one", "other")]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other")]
    assert configs[0] == configs[1]
    assert weights[0] == weights[1]
    assert "_proj" in configs[0]  # something was kept
