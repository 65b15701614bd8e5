"""Root mean square norms (Zhang and Sennrich 2019), each with what stands beside it in one pass.

One program for a row, or for a part of one: a row is read once and written once.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import Parts, RaggedBatch


def norm_rows(
    x: torch.Tensor,
    addend: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """Add to float32 rows what is owed to them, if anything, and normalise them into out."""
    width = x.shape[1]
    _norm_rows[(len(x),)](
        x,
        x if addend is None else addend,
        weight,
        out,
        eps,
        width=width,
        tile=triton.next_power_of_2(width),
        adds=addend is not None,
    )


def norm_sampled_rows(
    x: torch.Tensor, batch: RaggedBatch, weight: torch.Tensor, eps: float, out: torch.Tensor
) -> None:
    """Normalise the sampled rows alone."""
    width = x.shape[1]
    if len(batch.sampled_rows):
        _norm_sampled_rows[(len(batch.sampled_rows),)](
            x, batch.sampled_rows, weight, out, eps, width=width, tile=triton.next_power_of_2(width)
        )


def norm_parts(x: torch.Tensor, parts: Parts, weight: torch.Tensor, eps: float) -> None:
    """Normalise parts of rows where they are, each by itself."""
    width = len(weight)
    _norm_parts[len(x), parts.count](
        x,
        weight,
        eps,
        row_width=x.shape[1],
        first=parts.start,
        width=width,
        tile=triton.next_power_of_2(width),
    )


def norm_add(x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor) -> None:
    """Normalise rows and add them to the residual."""
    width = x.shape[1]
    _norm_add[(len(x),)](x, weight, residual, eps, width=width, tile=triton.next_power_of_2(width))


@triton.jit
def _norm_rows(
    x, addend, weight, out, eps, width: tl.constexpr, tile: tl.constexpr, adds: tl.constexpr
):
    column = tl.arange(0, tile)
    is_column = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    row = tl.load(x + place, mask=is_column, other=0.0)
    if adds:
        row += tl.load(addend + place, mask=is_column, other=0.0).to(tl.float32)
        tl.store(x + place, row, mask=is_column)
    normed = _normalise(row, weight, eps, column, width)
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _norm_sampled_rows(x, rows, weight, out, eps, width: tl.constexpr, tile: tl.constexpr):
    column = tl.arange(0, tile)
    is_column = column < width
    source = tl.load(rows + tl.program_id(0)).to(tl.int64) * width + column
    row = tl.load(x + source, mask=is_column, other=0.0)
    normed = _normalise(row, weight, eps, column, width)
    place = tl.program_id(0) * width + column
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _norm_parts(
    x,
    weight,
    eps,
    row_width: tl.constexpr,
    first: tl.constexpr,
    width: tl.constexpr,
    tile: tl.constexpr,
):
    column = tl.arange(0, tile)
    is_column = column < width
    place = tl.program_id(0).to(tl.int64) * row_width + first + tl.program_id(1) * width + column
    part = tl.load(x + place, mask=is_column, other=0.0).to(tl.float32)
    normed = _normalise(part, weight, eps, column, width)
    tl.store(x + place, normed.to(x.dtype.element_ty), mask=is_column)


@triton.jit
def _norm_add(x, weight, residual, eps, width: tl.constexpr, tile: tl.constexpr):
    column = tl.arange(0, tile)
    is_column = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    row = tl.load(x + place, mask=is_column, other=0.0).to(tl.float32)
    normed = _normalise(row, weight, eps, column, width)
    before = tl.load(residual + place, mask=is_column, other=0.0)
    tl.store(residual + place, before + normed, mask=is_column)


@triton.jit
def _normalise(row, weight, eps, column, width: tl.constexpr):
    """Return a row over its root mean square, times the weight; the row is zero beyond width."""
    scale = tl.rsqrt(tl.sum(row * row, 0) / width + eps)
    return row * scale * tl.load(weight + column, mask=column < width, other=0.0)
