"""Kernels: every operation of a decoder, behind one signature for every device.

Owns the shape of a ragged batch, in which rows of all sequences follow each other without padding,
and of a linear layer. ReferenceKernels says what each operation means; every other implementation
is tested against it.

An implementation may compute at once, or record what to compute and do it at each step: then a
result is only a buffer that will be filled, and it holds until the same operation of the same width
comes again. The decoder is written so that both are right.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kv_cache import CacheLayout, LayerCache
from engine.model.config import Activation
from engine.model.rope import RopeTable
from engine.quantised import QuantisedWeight


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The rows of one step: sequence s owns rows row_starts[s] to row_starts[s+1].

    context_lengths counts a sequence's computed tokens once this step is done; its rows are the
    last of them. block_ids[block_starts[s] : block_starts[s+1]] are its blocks in order. Of
    the sampled rows the last hidden states are wanted: one of each sequence that samples, and after
    these all that are pooled. All int32 on the device.
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
    softcap: float | None


@dataclass(frozen=True, slots=True)
class Parts:
    """Neighbouring parts of each row, from column `start`, all of one width."""

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear layer as its kernels laid it out; nobody else may look into data."""

    data: torch.Tensor
    bias: torch.Tensor | None
    num_in: int
    num_out: int
    activation: Activation | None  # for a weight that holds gate and up
    scales: torch.Tensor | None = None  # for a quantised weight
    group_size: int | None = None  # for half bytes, the inputs that share a scale


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The feed-forward part of a layer, or one expert's."""

    gate_up: Linear  # M -> 2 F
    down: Linear  # F -> M


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward parts, each row goes through some of them (Shazeer et al. 2017, section 2).

    A row's share of an expert is the softmax of the router's scores; the num_chosen largest are
    taken, and count as they are or divided by their sum. A shared expert is the last one: every row
    goes through it, its share is the sigmoid of the last score, and the softmax leaves it out.
    """

    router: Linear  # M -> E
    experts: tuple[FeedForward, ...]  # E
    num_chosen: int
    is_renormalised: bool
    has_shared: bool


class Kernels(Protocol):
    """One implementation of all operations.

    Residuals, norms and scores are float32, all other activations the model's type. Those a CUDA
    graph can record read nothing back from the device. Those that share tables can look rows up in
    what pack returns: an embedding that is also the head is held once.
    """

    name: str
    cache_layout: CacheLayout
    is_recordable: bool
    shares_tables: bool

    def pack(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Lay a weight [out, in] out for fast products; the original is no longer needed."""
        ...

    def pack_int8(
        self,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation | None,
    ) -> Linear:
        """Lay out a weight of signed bytes [out, in] with a float32 scale for each output.

        Its products quantise each row to bytes by the row's own largest value.
        """
        ...

    def pack_int4(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Lay out a weight of half bytes with a scale for each output and group of inputs.

        It stays so in memory; its products are those of the dequantised weight.
        """
        ...

    def pack_table(self, table: torch.Tensor) -> Linear:
        """Lay a table [V, M] out for looking rows up; the original is no longer needed."""
        ...

    def embed(self, table: Linear, batch: RaggedBatch, scale: float) -> torch.Tensor:
        """Look up the rows' tokens: the residual, [T, M] float32."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise float32 rows; return them in the model's type."""
        ...

    def rms_norm_parts(
        self, x: torch.Tensor, parts: Parts, weight: torch.Tensor, eps: float
    ) -> None:
        """Normalise parts of rows of the model's type where they are, each by itself."""
        ...

    def rms_norm_add(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor
    ) -> None:
        """Normalise rows of the model's type and add them to the residual."""
        ...

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 rows in the model's type."""
        ...

    def rms_norm_sampled(
        self, x: torch.Tensor, batch: RaggedBatch, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Normalise the sampled rows alone, [R, M]."""
        ...

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        ...

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None:
        """Add x @ weight.T to the residual."""
        ...

    def linear_gated(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return activation(gate) * up, both products with x."""
        ...

    def experts_add(self, x: torch.Tensor, experts: Experts, residual: torch.Tensor) -> None:
        """Add to the residual what each row's experts make of it, times their shares.

        They are added in the order of their numbers, whatever other rows choose.
        """
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
        """Let each row's queries attend to its sequence's cached tokens up to itself, [T, H D]."""
        ...

    def scores(self, x: torch.Tensor, weight: Linear, softcap: float | None) -> torch.Tensor:
        """Score the vocabulary for sampled rows, [R, V] float32."""
        ...

    def best(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return the token with the highest score for each sampled row, [R] int32."""
        ...
