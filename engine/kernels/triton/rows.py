"""What is done to rows value by value: looking tokens up, and the gate of a feed-forward layer."""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import RaggedBatch
from engine.model.config import Activation

_TILE = 1024


def embed_rows(table: torch.Tensor, batch: RaggedBatch, scale: float, out: torch.Tensor) -> None:
    """Look up the rows' tokens, times scale, into float32 rows."""
    width = table.shape[1]
    _embed_rows[len(out), triton.cdiv(width, _TILE)](
        table, batch.token_ids, out, scale, width=width, tile=_TILE
    )


def gate_rows(gate_up: torch.Tensor, activation: Activation | None, out: torch.Tensor) -> None:
    """Return activation(gate) * up of rows that hold both (GLU variants, Shazeer 2020)."""
    width = out.shape[1]
    _gate_rows[len(out), triton.cdiv(width, _TILE)](
        gate_up, out, width=width, tile=_TILE, is_silu=activation is Activation.SILU
    )


@triton.jit
def _embed_rows(table, token_ids, out, scale, width: tl.constexpr, tile: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    is_column = column < width
    token_id = tl.load(token_ids + row).to(tl.int64)
    values = tl.load(table + token_id * width + column, mask=is_column).to(tl.float32)
    tl.store(out + row * width + column, values * scale, mask=is_column)


@triton.jit
def _gate_rows(gate_up, out, width: tl.constexpr, tile: tl.constexpr, is_silu: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    is_column = column < width
    start = gate_up + row * 2 * width + column
    gate = tl.load(start, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(start + width, mask=is_column, other=0.0).to(tl.float32)
    if is_silu:
        opened = gate * tl.sigmoid(gate)
    else:  # GELU by tanh, and 1 + tanh(z) is twice the sigmoid of 2 z
        cubed = gate * gate * gate
        opened = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * cubed))
    place = row * width + column
    tl.store(out + place, (opened * up).to(out.dtype.element_ty), mask=is_column)
