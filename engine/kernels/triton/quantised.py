"""Products with quantised weights: bytes by bytes, and half bytes turned back as they are read.

Owns nothing of the schemes, which engine/quantised.py describes. Both products store [rows, tile]
of the outputs from float32 sums; those of bytes are exact whole numbers before they are scaled.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import Linear
from engine.kernels.triton.rounding import bytes_per_unit, rounded
from engine.kernels.triton.tiles import dot_precision, row_tile

_OUTPUT_TILE = 64
_INPUT_TILE = 64


def multiply_int8(x: torch.Tensor, weight: Linear) -> torch.Tensor:
    """Return x @ weight.T + bias; each row of x becomes bytes by its own largest value."""
    num_rows, rows = len(x), row_tile(len(x), x.dtype)
    out = torch.empty(num_rows, weight.num_out, dtype=x.dtype, device=x.device)
    whole = torch.empty(num_rows, weight.num_in, dtype=torch.int8, device=x.device)
    row_scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    _round_rows[(num_rows,)](
        x, whole, row_scales, width=weight.num_in, tile=triton.next_power_of_2(weight.num_in)
    )
    _multiply_int8[triton.cdiv(weight.num_out, _OUTPUT_TILE), triton.cdiv(num_rows, rows)](
        whole,
        row_scales,
        weight.data,
        weight.scales,
        weight.scales if weight.bias is None else weight.bias,
        out,
        num_rows,
        has_bias=weight.bias is not None,
        num_out=weight.num_out,
        num_in=weight.num_in,
        rows=rows,
        tile=_OUTPUT_TILE,
        input_tile=_INPUT_TILE,
    )
    return out


def multiply_int4(x: torch.Tensor, weight: Linear) -> torch.Tensor:
    """Return x @ weight.T + bias with the dequantised weight, of x's type."""
    num_rows, rows = len(x), row_tile(len(x), x.dtype)
    out = torch.empty(num_rows, weight.num_out, dtype=x.dtype, device=x.device)
    assert weight.scales is not None, "half bytes have scales"
    _multiply_int4[triton.cdiv(weight.num_out, _OUTPUT_TILE), triton.cdiv(num_rows, rows)](
        x,
        weight.data,
        weight.scales,
        weight.scales if weight.bias is None else weight.bias,
        out,
        num_rows,
        has_bias=weight.bias is not None,
        num_out=weight.num_out,
        num_bytes=weight.num_in // 2,
        num_groups=weight.scales.shape[1],
        group_bytes=(weight.group_size or weight.num_in) // 2,
        rows=rows,
        tile=_OUTPUT_TILE,
        input_tile=_INPUT_TILE // 2,
        precision=dot_precision(x.dtype),
    )
    return out


@triton.jit
def _round_rows(x, whole, row_scales, width: tl.constexpr, tile: tl.constexpr):
    column = tl.arange(0, tile)
    is_column = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    row = tl.load(x + place, mask=is_column, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(row), 0)
    tl.store(whole + place, rounded(row * bytes_per_unit(largest)), mask=is_column)
    tl.store(row_scales + tl.program_id(0), largest / 127.0)


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_int8(
    whole,
    row_scales,
    weight,
    scales,
    bias,
    out,
    num_rows,
    has_bias: tl.constexpr,
    num_out: tl.constexpr,
    num_in: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    input_tile: tl.constexpr,
):
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    output = tl.program_id(0) * tile + tl.arange(0, tile)
    is_row, is_output = row < num_rows, output < num_out
    total = tl.zeros([rows, tile], tl.int32)
    for first in range(0, num_in, input_tile):
        column = first + tl.arange(0, input_tile)
        is_column = column < num_in
        some = tl.load(
            whole + row.to(tl.int64)[:, None] * num_in + column[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0,
        )
        part = tl.load(
            weight + output.to(tl.int64)[None, :] * num_in + column[:, None],
            mask=is_output[None, :] & is_column[:, None],
            other=0,
        )
        total += tl.dot(some, part, out_dtype=tl.int32)
    row_scale = tl.load(row_scales + row, mask=is_row, other=0.0)
    scale = tl.load(scales + output, mask=is_output, other=0.0)
    product = total.to(tl.float32) * (row_scale[:, None] * scale[None, :])
    if has_bias:
        product += tl.load(bias + output, mask=is_output, other=0.0)[None, :]
    place = row.to(tl.int64)[:, None] * num_out + output[None, :]
    is_place = is_row[:, None] & is_output[None, :]
    tl.store(out + place, product.to(out.dtype.element_ty), mask=is_place)


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_int4(
    x,
    weight,  # [out, num_bytes], the even input in the low half
    scales,  # [out, groups]
    bias,
    out,
    num_rows,
    has_bias: tl.constexpr,
    num_out: tl.constexpr,
    num_bytes: tl.constexpr,
    num_groups: tl.constexpr,
    group_bytes: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    input_tile: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    output = tl.program_id(0) * tile + tl.arange(0, tile)
    is_row, is_output = row < num_rows, output < num_out
    total = tl.zeros([rows, tile], tl.float32)
    for first in range(0, num_bytes, input_tile):
        byte = first + tl.arange(0, input_tile)
        is_byte = byte < num_bytes
        is_input = is_row[:, None] & is_byte[None, :]
        inputs = x + row.to(tl.int64)[:, None] * (2 * num_bytes) + 2 * byte[None, :]
        even = tl.load(inputs, mask=is_input, other=0.0)
        odd = tl.load(inputs + 1, mask=is_input, other=0.0)
        is_part = is_output[None, :] & is_byte[:, None]
        place = output.to(tl.int64)[None, :] * num_bytes + byte[:, None]
        part = tl.load(weight + place, mask=is_part, other=0).to(tl.int32)
        group = output.to(tl.int64)[None, :] * num_groups + (byte // group_bytes)[:, None]
        scale = tl.load(scales + group, mask=is_part, other=0.0).to(tl.float32)
        low = ((part & 15) - 8).to(tl.float32) * scale
        high = ((part >> 4) - 8).to(tl.float32) * scale
        total += tl.dot(even, low.to(even.dtype), input_precision=precision)
        total += tl.dot(odd, high.to(odd.dtype), input_precision=precision)
    if has_bias:
        total += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * num_out + output[None, :]
    is_place = is_row[:, None] & is_output[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_place)
