"""Kernels: the operations between the linear layers, behind one signature for every device.

Owns the shape of a ragged batch, in which rows of all sequences follow each other without padding.
ReferenceKernels says what each operation means; every other implementation is tested against it.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kv_cache import LayerCache
from engine.model.rope import RopeTable


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The rows of one step: sequence s owns rows row_starts[s] to row_starts[s+1].

    context_lengths counts a sequence's computed tokens once this step is done; its rows are the
    last of them. block_ids[block_starts[s] : block_starts[s+1]] are its blocks in order. All int32
    on the device.
    """

    token_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    slots: torch.Tensor  # [T]
    row_starts: torch.Tensor  # [S + 1]
    context_lengths: torch.Tensor  # [S]
    block_starts: torch.Tensor  # [S + 1]
    block_ids: torch.Tensor  # [sum of blocks]
    sampled_rows: torch.Tensor  # [R]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What an attention layer needs to know besides its tensors."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None


class Kernels(Protocol):
    """One implementation of all operations.

    Residuals are float32, everything else the model's type.
    """

    name: str

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise float32 rows; return them in the weight's type."""
        ...

    def add_rms_norm(
        self, residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add update to the residual in place, then normalise it."""
        ...

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,
        rope: RopeTable,
        cache: LayerCache,
        shape: AttentionShape,
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the cache."""
        ...

    def attend(
        self, qkv: torch.Tensor, batch: RaggedBatch, cache: LayerCache, shape: AttentionShape
    ) -> torch.Tensor:
        """Let each row's queries attend to its sequence's cached tokens up to itself."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up of rows that hold both."""
        ...
