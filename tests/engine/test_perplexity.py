from dataclasses import replace
from math import exp

import pytest
import torch
from torch.nn import functional

from engine.config import CacheType, ComputeType, EngineConfig, KernelChoice
from engine.own_text import own_text
from engine.perplexity import TextScorer
from ops.bench.perplexity import sample_windows
from tests.support.family_models import TheirModel, write_family_model

TEXTS = [[5, 17, 200, 31, 31, 8] * 4, [1, 2, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_family_model(tmp_path_factory.mktemp("model") / "gemma2", "gemma2")


@pytest.mark.parametrize("kernels", [KernelChoice.AUTO, KernelChoice.REFERENCE])
def test_perplexity_is_what_transformers_finds(folder, kernels):
    theirs = TheirModel(folder)
    losses = [
        functional.cross_entropy(theirs.logits(text)[:-1], torch.tensor(text[1:]), reduction="sum")
        for text in TEXTS
    ]
    config = EngineConfig(dtype=ComputeType.FLOAT32, kernels=kernels)

    perplexity = TextScorer(folder, config, longest=24).perplexity(TEXTS)

    assert perplexity == pytest.approx(exp(float(sum(losses)) / 25), rel=1e-4)


@pytest.mark.parametrize("kernels", [KernelChoice.AUTO, KernelChoice.REFERENCE])
def test_a_cache_of_bytes_hardly_changes_perplexity(folder, kernels):
    whole = EngineConfig(dtype=ComputeType.FLOAT32, kernels=kernels)
    in_bytes = replace(whole, kv_dtype=CacheType.INT8)

    ours, theirs = (
        TextScorer(folder, config, longest=24).perplexity(TEXTS) for config in (in_bytes, whole)
    )

    assert ours != theirs
    assert ours == pytest.approx(theirs, rel=0.01)


def test_the_sample_is_long_enough_to_tell_a_percent(folder):
    windows = sample_windows(folder)

    assert sum(map(len, windows)) > 2000
    assert all(2 <= len(window) <= 512 for window in windows)


def test_a_model_writes_the_same_text_each_time(folder):
    texts = own_text(folder, num_texts=3, num_tokens=9)

    assert [len(text) for text in texts] == [9, 9, 9]
    assert own_text(folder, num_texts=3, num_tokens=9) == texts
