"""How far one model's answers are from another's, on whole texts.

Owns the measure: the Kullback-Leibler divergence of what they foretell at each token, in nats. On
text that the full model wrote by itself this is how much more the other is surprised by it, so that
perplexity rises by e to it, less one.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import expm1
from pathlib import Path

import torch
from torch.nn import functional

from engine.calibration import batch_of
from engine.kernels.interface import RaggedBatch
from engine.kv_cache import CacheFormat, KvCache
from engine.model.build import Placement, load_decoder_weights
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder, DecoderWeights
from engine.model.families import read_model_config
from engine.text_kernels import TextKernels

_CPU = torch.device("cpu")
_TEXTS_AT_ONCE = 4


def load_full(folder: Path, dtype: torch.dtype, longest: int) -> DecoderWeights:
    """Load weights for TextKernels of this type and texts of up to so many tokens."""
    config = read_model_config(folder)
    return load_decoder_weights(folder, config, TextKernels(dtype), Placement(dtype, _CPU, longest))


def no_cache(config: ModelConfig) -> KvCache:
    """Return what stands in for a cache where whole texts are read."""
    return KvCache(config, 0, CacheFormat(2, torch.bfloat16), _CPU)


def whole_texts(texts: Sequence[list[int]]) -> RaggedBatch:
    """Lay texts out as one step in which every row is scored."""
    batch = batch_of(list(texts))
    return replace(batch, sampled_rows=torch.arange(len(batch.token_ids)))


def log_probabilities(decoder: Decoder, batch: RaggedBatch) -> torch.Tensor:
    """Return what a model foretells at each row, [T, V]."""
    return decoder.scores(decoder.forward(batch)).log_softmax(-1)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the mean divergence of rows of log probabilities, in nats, a scalar."""
    return functional.kl_div(found, wanted, reduction="batchmean", log_target=True)


@torch.no_grad()
def measure_rise(folder: Path, copy: Path, texts: Sequence[list[int]]) -> float:
    """Tell by which share a copy's perplexity is higher, on text that the folder's model wrote.

    Computed in float32, which leaves out what other types of activations add on both sides.
    """
    longest = max(len(text) for text in texts)
    full, changed = (
        Decoder(
            load_full(one, torch.float32, longest),
            TextKernels(torch.float32),
            no_cache(read_model_config(one)),
        )
        for one in (folder, copy)
    )
    total, num_rows = 0.0, 0
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        batch = whole_texts(texts[start : start + _TEXTS_AT_ONCE])
        rows = len(batch.token_ids)
        wanted, found = log_probabilities(full, batch), log_probabilities(changed, batch)
        total += rows * float(distance(found, wanted))
        num_rows += rows
    return expm1(total / num_rows)
