"""ModelRunner: a plan becomes tensors, the tensors go through the model.

Owns the step's tensors and the only copies from host to device. Everything about sequences is read
here and nothing is changed.
"""

from array import array

import torch

from engine.kernels.interface import RaggedBatch
from engine.kv_cache import KvCache
from engine.model.decoder import Decoder
from engine.plan import StepPlan


class ModelRunner:
    """One model and its cache on one device."""

    def __init__(
        self, decoder: Decoder, cache: KvCache, block_size: int, device: torch.device
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._block_size = block_size
        self._device = device

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> torch.Tensor:
        """Compute a plan.

        Return the normalised last hidden state of each chunk that samples, [R, M].
        """
        return self._decoder.forward(self._batch(plan), self._cache)

    def _batch(self, plan: StepPlan) -> RaggedBatch:
        block_size = self._block_size
        token_ids, positions, slots, block_ids = (array("i") for _ in range(4))
        row_starts, block_starts = array("i", (0,)), array("i", (0,))
        context_lengths, sampled_rows = array("i"), array("i")
        for chunk in plan.chunks:
            end = chunk.start + chunk.num_tokens
            blocks = chunk.sequence.table.blocks
            token_ids.extend(chunk.sequence.known_ids[chunk.start : end])
            positions.extend(range(chunk.start, end))
            slots.extend(
                blocks[position // block_size] * block_size + position % block_size
                for position in range(chunk.start, end)
            )
            block_ids.extend(blocks)
            row_starts.append(len(token_ids))
            block_starts.append(len(block_ids))
            context_lengths.append(end)
            if chunk.samples:
                sampled_rows.append(len(token_ids) - 1)
        return RaggedBatch(
            token_ids=self._to_device(token_ids),
            positions=self._to_device(positions),
            slots=self._to_device(slots),
            row_starts=self._to_device(row_starts),
            context_lengths=self._to_device(context_lengths),
            block_starts=self._to_device(block_starts),
            block_ids=self._to_device(block_ids),
            sampled_rows=self._to_device(sampled_rows),
        )

    def _to_device(self, values: "array[int]") -> torch.Tensor:
        """Copy once; torch.frombuffer takes no empty buffer, and a step may sample nothing."""
        if not values:
            return torch.empty(0, dtype=torch.int32, device=self._device)
        return torch.frombuffer(values, dtype=torch.int32).to(self._device)
