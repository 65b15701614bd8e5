"""TextScorer: how surprised a model is by a text.

Owns scoring every token of a text in one step, through the kernels that serve. Perplexity (Jelinek
et al. 1977) is e to the mean loss per token.
"""

from math import exp
from pathlib import Path

import torch
from torch.nn import functional

from engine.config import EngineConfig
from engine.kernels.choice import choose_kernels
from engine.kernels.interface import RaggedBatch
from engine.kernels.native import NativeKernels, NativeModel
from engine.kv_cache import CacheFormat, KvCache
from engine.loading import cache_dtype, compute_dtype
from engine.model.build import Placement, load_decoder_weights
from engine.model.decoder import Decoder
from engine.model.families import read_model_config
from engine.step_buffers import StepBuffers, StepSizes


class TextScorer:
    """One model, ready to score texts of up to `longest` tokens."""

    def __init__(self, folder: Path, config: EngineConfig, longest: int) -> None:
        device = torch.device(config.device)
        dtype = compute_dtype(folder, config)
        model = read_model_config(folder)
        num_blocks = -(-longest // config.block_size)
        # Every row is scored, as if each were a sequence of its own.
        sizes = StepSizes(longest, longest, blocks_per_sequence=1)
        kernels = choose_kernels(config, dtype, device, sizes)
        weights = load_decoder_weights(folder, model, kernels, Placement(dtype, device, longest))
        blocks = CacheFormat(config.block_size, cache_dtype(config, dtype), kernels.cache_layout)
        cache = KvCache(model, num_blocks, blocks, device)
        self._buffers = StepBuffers(sizes, config.block_size, device)
        decoder = Decoder(weights, kernels, cache)
        self._model: Decoder | NativeModel = decoder
        if isinstance(kernels, NativeKernels):
            self._model = NativeModel(decoder, kernels, self._buffers)
        self._block_size = config.block_size

    @torch.inference_mode()
    def total_loss(self, token_ids: list[int]) -> float:
        """Return the sum of -log p over all tokens but the first."""
        hidden = self._model.forward(self._fill(token_ids))
        scores = self._model.scores(hidden)[:-1]  # [T - 1, V]
        following = torch.tensor(token_ids[1:], device=scores.device)
        return float(functional.cross_entropy(scores, following, reduction="sum"))

    def perplexity(self, texts: list[list[int]]) -> float:
        """Return the perplexity over all texts; each is read by itself."""
        num_scored = sum(len(text) - 1 for text in texts)
        return exp(sum(self.total_loss(text) for text in texts) / num_scored)

    def _fill(self, token_ids: list[int]) -> RaggedBatch:
        """Lay one text out; block n is the n-th of its sequence, so positions are slots."""
        whole, num_tokens = self._buffers.whole, len(token_ids)
        num_blocks = -(-num_tokens // self._block_size)
        positions = torch.arange(num_tokens, dtype=torch.int32)
        return RaggedBatch(
            token_ids=_copy(whole.token_ids, torch.tensor(token_ids)),
            positions=_copy(whole.positions, positions),
            slots=_copy(whole.slots, positions),
            row_starts=_copy(whole.row_starts, torch.tensor([0, num_tokens])),
            context_lengths=_copy(whole.context_lengths, torch.tensor([num_tokens])),
            block_starts=_copy(whole.block_starts, torch.tensor([0, num_blocks])),
            block_ids=_copy(whole.block_ids, torch.arange(num_blocks)),
            sampled_rows=_copy(whole.sampled_rows, positions),
        )


def _copy(buffer: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return buffer[: len(values)].copy_(values)
