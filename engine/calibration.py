"""Calibration: what goes into each linear layer of a model when it reads typical text.

Owns running a decoder one layer at a time over all text at once, so that a layer can be changed
before the next one sees what comes out of it.
"""

from dataclasses import replace

import torch

from engine.kernels.interface import FeedForward, Linear, RaggedBatch
from engine.kernels.reference import ReferenceKernels
from engine.kv_cache import CacheFormat, KvCache
from engine.model.build import WeightsBuilder, rope_tables
from engine.model.config import ModelConfig
from engine.model.decoder import LayerRunner
from engine.model.stored_linear import Part
from engine.model.weights import Weights

_CPU = torch.device("cpu")
_BLOCK_SIZE = 16


class WatchingKernels(ReferenceKernels):
    """Plain kernels that remember what each linear layer was last given."""

    def __init__(self) -> None:
        super().__init__(torch.float32, is_packed=False)
        self._inputs: dict[int, torch.Tensor] = {}

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return x @ weight.T + bias; every kind of product comes through here."""
        self._inputs[id(weight)] = x
        return super().linear(x, weight)

    def take_inputs(self, weight: Linear) -> torch.Tensor:
        """Return the rows a layer was given, and forget them."""
        return self._inputs.pop(id(weight))

    def forget(self) -> None:
        """Forget all layers."""
        self._inputs.clear()


class LayerwiseRun:
    """One model over some text, layer after layer, in float32."""

    def __init__(self, files: Weights, config: ModelConfig, texts: list[list[int]]) -> None:
        self._kernels = WatchingKernels()
        self._builder = WeightsBuilder(files, config, self._kernels, torch.float32)
        self._ropes = rope_tables(config, config.max_context, _CPU)
        self._batch = batch_of(texts)
        one_layer = replace(config, layers=config.layers[:1])
        num_blocks = len(self._batch.block_ids)
        cache = KvCache(one_layer, num_blocks, CacheFormat(_BLOCK_SIZE, torch.float32), _CPU)
        self._cache = cache.layers[0]
        self._residual = self._kernels.embed(
            self._builder.embedding(), self._batch, config.embedding_scale
        )  # [T, M]
        self._runner = LayerRunner(self._kernels, config.norm_eps)

    def watch(self, index: int) -> dict[Part, torch.Tensor]:
        """Run a layer as it is, leave the text where it was, and return what went where.

        Rows of inputs, [T, in] float32.
        """
        layer = self._builder.layer(index, self._ropes)
        assert isinstance(layer.feed_forward, FeedForward), "experts are not quantised"
        self._runner.run(layer, self._residual.clone(), self._batch, self._cache)
        return {
            Part.QKV: self._kernels.take_inputs(layer.qkv),
            Part.ATTENTION_OUT: self._kernels.take_inputs(layer.attention_out),
            Part.GATE_UP: self._kernels.take_inputs(layer.feed_forward.gate_up),
            Part.DOWN: self._kernels.take_inputs(layer.feed_forward.down),
        }

    def advance(self, index: int) -> None:
        """Run a layer as it has become; what comes out is what the next layer sees."""
        layer = self._builder.layer(index, self._ropes)
        self._runner.run(layer, self._residual, self._batch, self._cache)
        self._kernels.forget()


def batch_of(texts: list[list[int]]) -> RaggedBatch:
    """Lay all texts out as one step."""
    lengths = torch.tensor([len(text) for text in texts])
    positions = torch.cat([torch.arange(length) for length in lengths])
    num_blocks = (lengths + _BLOCK_SIZE - 1) // _BLOCK_SIZE
    row_starts, block_starts = (_starts(counts) for counts in (lengths, num_blocks))
    slots = positions + (block_starts[:-1] * _BLOCK_SIZE).repeat_interleave(lengths)
    return RaggedBatch(
        token_ids=torch.tensor([token for text in texts for token in text], dtype=torch.int32),
        positions=positions.int(),
        slots=slots.int(),
        row_starts=row_starts.int(),
        context_lengths=lengths.int(),
        block_starts=block_starts.int(),
        block_ids=torch.arange(int(num_blocks.sum()), dtype=torch.int32),
        sampled_rows=torch.empty(0, dtype=torch.int32),
    )


def _starts(counts: torch.Tensor) -> torch.Tensor:
    """Return where each part begins, and where the last one ends."""
    return torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
