"""StepBuffers: the index arrays of a step, allocated once and filled in place.

Owns how a plan is laid out as a ragged batch. Fixed addresses let recorded kernels read the same
memory at every step. Everything about sequences is read here and nothing is changed.
"""

from array import array
from dataclasses import dataclass

import torch

from engine.kernels.interface import RaggedBatch
from engine.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The largest step there can be."""

    num_tokens: int
    num_sequences: int
    blocks_per_sequence: int


class StepBuffers:
    """Fills one batch after another into the same tensors."""

    def __init__(self, sizes: StepSizes, block_size: int, device: torch.device) -> None:
        self._block_size = block_size

        def indices(length: int) -> torch.Tensor:
            return torch.zeros(length, dtype=torch.int32, device=device)

        self.whole = RaggedBatch(
            token_ids=indices(sizes.num_tokens),
            positions=indices(sizes.num_tokens),
            slots=indices(sizes.num_tokens),
            row_starts=indices(sizes.num_sequences + 1),
            context_lengths=indices(sizes.num_sequences),
            block_starts=indices(sizes.num_sequences + 1),
            block_ids=indices(sizes.num_sequences * sizes.blocks_per_sequence),
            sampled_rows=indices(sizes.num_tokens),
        )

    def fill(self, plan: StepPlan) -> RaggedBatch:
        """Lay a plan out; the result is valid until the next call."""
        block_size = self._block_size
        token_ids, positions, slots, block_ids = (array("i") for _ in range(4))
        row_starts, block_starts = array("i", (0,)), array("i", (0,))
        context_lengths, sampled_rows, pooled_rows = array("i"), array("i"), array("i")
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
            pooled_rows.extend(range(len(token_ids) - chunk.num_pooled, len(token_ids)))
        whole = self.whole
        return RaggedBatch(
            token_ids=_fill(whole.token_ids, token_ids),
            positions=_fill(whole.positions, positions),
            slots=_fill(whole.slots, slots),
            row_starts=_fill(whole.row_starts, row_starts),
            context_lengths=_fill(whole.context_lengths, context_lengths),
            block_starts=_fill(whole.block_starts, block_starts),
            block_ids=_fill(whole.block_ids, block_ids),
            sampled_rows=_fill(whole.sampled_rows, sampled_rows + pooled_rows),
        )


def _fill(buffer: torch.Tensor, values: "array[int]") -> torch.Tensor:
    """Copy once; torch.frombuffer takes no empty buffer, and a step may sample nothing."""
    part = buffer[: len(values)]
    if values:
        part.copy_(torch.frombuffer(values, dtype=torch.int32))
    return part
