"""StepBuffers: the index arrays of a step, allocated once and filled in place.

Owns how a plan is laid out as a ragged batch. Fixed addresses let recorded kernels read the same
memory at every step. All arrays are parts of one, so that a device gets them in one copy.
Everything about sequences is read here and nothing is changed.
"""

from array import array
from dataclasses import dataclass, replace

import torch

from engine.kernels.interface import RaggedBatch
from engine.plan import Chunk, StepPlan

_ALIGNMENT = 32  # values; kernels load several at once from an array's first on


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The largest step there can be."""

    num_tokens: int
    num_sequences: int
    blocks_per_sequence: int


@dataclass(frozen=True, slots=True)
class Padding:
    """Row counts that steps of single tokens are filled up to, and the block that idle rows use.

    An idle row is a sequence of one token. What it computes is finite, and nobody reads it.
    """

    row_counts: tuple[int, ...]  # rising
    block: int

    def rows_for(self, num_rows: int) -> int | None:
        """Return the smallest count that holds so many rows; None when there is none."""
        return next((count for count in self.row_counts if count >= num_rows), None)


class StepBuffers:
    """Fills one batch after another into the same tensors.

    With padding, the rows after those of a step of single tokens are idle, up to the next count.
    """

    def __init__(
        self,
        sizes: StepSizes,
        block_size: int,
        device: torch.device,
        padding: Padding | None = None,
    ) -> None:
        self._block_size = block_size
        self._padding = padding
        self._memory = torch.zeros(_num_values(sizes), dtype=torch.int32, device=device)
        # A CPU's own memory is filled where it is.
        self._staging = self._memory
        if device.type != "cpu":
            self._staging = torch.zeros_like(self._memory, device="cpu", pin_memory=True)
        self.whole = _cut(self._memory, sizes)
        self._staged = _cut(self._staging, sizes)

    def fill(self, plan: StepPlan) -> RaggedBatch:
        """Lay a plan out; the result is valid until the next call."""
        indices = _Indices(self._block_size)
        for chunk in plan.chunks:
            indices.add(chunk)
        size = indices.size()
        if self._padding is not None and size.is_single_tokens:
            num_rows = self._padding.rows_for(size.num_rows) or size.num_rows
            indices.add_idle(num_rows - size.num_rows, self._padding.block)
        self._send(indices)
        return _first(self.whole, size)

    def fill_idle(self, num_rows: int) -> RaggedBatch:
        """Lay idle rows out, to be recorded; the result has room for all blocks of later steps."""
        assert self._padding is not None, "idle rows need a block of their own"
        indices = _Indices(self._block_size)
        indices.add_idle(num_rows, self._padding.block)
        self._send(indices)
        return replace(_first(self.whole, indices.size()), block_ids=self.whole.block_ids)

    def _send(self, indices: "_Indices") -> None:
        """Write all arrays, then copy what is used of them to the device."""
        staged = self._staged
        _write(staged.token_ids, indices.token_ids)
        _write(staged.positions, indices.positions)
        _write(staged.slots, indices.slots)
        _write(staged.row_starts, indices.row_starts)
        _write(staged.context_lengths, indices.context_lengths)
        _write(staged.block_starts, indices.block_starts)
        _write(staged.sampled_rows, indices.sampled_rows + indices.pooled_rows)
        _write(staged.block_ids, indices.block_ids)
        if self._staging is not self._memory:
            end = staged.block_ids.storage_offset() + len(indices.block_ids)
            self._memory[:end].copy_(self._staging[:end])  # waits, for the next step writes there


@dataclass(frozen=True, slots=True)
class _Size:
    """How much of each array a batch takes."""

    num_rows: int
    num_sequences: int
    num_blocks: int
    num_sampled: int
    num_pooled: int

    @property
    def is_single_tokens(self) -> bool:
        """Tell whether each sequence computes one token whose hidden state is wanted."""
        return self.num_rows == self.num_sequences == self.num_sampled + self.num_pooled


class _Indices:
    """A batch's arrays while it is laid out."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.token_ids, self.positions, self.slots = (array("i") for _ in range(3))
        self.row_starts, self.block_starts = array("i", (0,)), array("i", (0,))
        self.context_lengths, self.block_ids = array("i"), array("i")
        self.sampled_rows, self.pooled_rows = array("i"), array("i")

    def add(self, chunk: Chunk) -> None:
        """Add the rows of one sequence."""
        block_size = self._block_size
        end = chunk.start + chunk.num_tokens
        blocks = chunk.sequence.table.blocks
        self.token_ids.extend(chunk.sequence.known_ids[chunk.start : end])
        self.positions.extend(range(chunk.start, end))
        self.slots.extend(
            blocks[position // block_size] * block_size + position % block_size
            for position in range(chunk.start, end)
        )
        self.block_ids.extend(blocks)
        num_rows = self._end_sequence(context_length=end)
        if chunk.samples:
            self.sampled_rows.append(num_rows - 1)
        self.pooled_rows.extend(range(num_rows - chunk.num_pooled, num_rows))

    def add_idle(self, num_rows: int, block: int) -> None:
        """Add rows of single tokens that all write to the same slot, the same values."""
        for _ in range(num_rows):
            self.token_ids.append(0)
            self.positions.append(0)
            self.slots.append(block * self._block_size)
            self.block_ids.append(block)
            self.pooled_rows.append(self._end_sequence(context_length=1) - 1)  # they come last

    def size(self) -> _Size:
        """Return how much has been added so far."""
        return _Size(
            len(self.token_ids),
            len(self.context_lengths),
            len(self.block_ids),
            len(self.sampled_rows),
            len(self.pooled_rows),
        )

    def _end_sequence(self, context_length: int) -> int:
        """Note where a sequence ends; return the number of rows up to there."""
        self.row_starts.append(len(self.token_ids))
        self.block_starts.append(len(self.block_ids))
        self.context_lengths.append(context_length)
        return len(self.token_ids)


def _lengths(sizes: StepSizes) -> list[int]:
    """Return how long each array may get, in the order of _cut."""
    num_tokens, num_sequences = sizes.num_tokens, sizes.num_sequences
    per_sequence = [num_sequences + 1, num_sequences, num_sequences + 1]
    return [*[num_tokens] * 4, *per_sequence, num_sequences * sizes.blocks_per_sequence]


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _num_values(sizes: StepSizes) -> int:
    return sum(map(_aligned, _lengths(sizes)))


def _cut(memory: torch.Tensor, sizes: StepSizes) -> RaggedBatch:
    """Return the arrays of the largest batch; block_ids are last, being mostly unused."""
    lengths = _lengths(sizes)
    parts = torch.split_with_sizes(memory, [_aligned(length) for length in lengths])
    arrays = [part[:length] for part, length in zip(parts, lengths, strict=True)]
    token_ids, positions, slots, sampled_rows, row_starts, context_lengths = arrays[:6]
    return RaggedBatch(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        row_starts=row_starts,
        context_lengths=context_lengths,
        block_starts=arrays[6],
        block_ids=arrays[7],
        sampled_rows=sampled_rows,
    )


def _first(whole: RaggedBatch, size: _Size) -> RaggedBatch:
    """Return the part of the arrays that a batch takes."""
    return RaggedBatch(
        token_ids=whole.token_ids[: size.num_rows],
        positions=whole.positions[: size.num_rows],
        slots=whole.slots[: size.num_rows],
        row_starts=whole.row_starts[: size.num_sequences + 1],
        context_lengths=whole.context_lengths[: size.num_sequences],
        block_starts=whole.block_starts[: size.num_sequences + 1],
        block_ids=whole.block_ids[: size.num_blocks],
        sampled_rows=whole.sampled_rows[: size.num_sampled + size.num_pooled],
    )


def _write(part: torch.Tensor, values: "array[int]") -> None:
    """Copy once; torch.frombuffer takes no empty buffer, and a step may sample nothing."""
    if values:
        part[: len(values)] = torch.frombuffer(values, dtype=torch.int32)
