"""The vocabulary's scores for sampled rows, and the best token without laying the scores out.

Owns one product, [rows, tile of the vocabulary] in float32, that both kernels share: one stores it,
the other keeps only its highest score and where it was. The weight, the largest of a model, is read
once for up to 64 rows.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import Linear
from engine.kernels.triton.tiles import column_tile, dot_precision, row_tile

_VOCABULARY_TILE = 128
_INPUT_TILE = 64


def score_rows(x: torch.Tensor, weight: Linear, softcap: float | None) -> torch.Tensor:
    """Score the vocabulary, [R, V] float32."""
    num_rows, rows = len(x), row_tile(len(x), x.dtype)
    tile = column_tile(_VOCABULARY_TILE, x.dtype)
    out = torch.empty(num_rows, weight.num_out, dtype=torch.float32, device=x.device)
    if num_rows:
        _score_rows[triton.cdiv(weight.num_out, tile), triton.cdiv(num_rows, rows)](
            x,
            weight.data,
            weight.data if weight.bias is None else weight.bias,
            out,
            num_rows,
            softcap or 0.0,
            has_softcap=softcap is not None,
            has_bias=weight.bias is not None,
            num_out=weight.num_out,
            num_in=weight.num_in,
            rows=rows,
            tile=tile,
            input_tile=column_tile(_INPUT_TILE, x.dtype),
            precision=dot_precision(x.dtype),
        )
    return out


def pick_best(x: torch.Tensor, weight: Linear) -> torch.Tensor:
    """Return the token with the highest score of each row, the lowest of equals, [R] int32."""
    num_rows, rows = len(x), row_tile(len(x), x.dtype)
    tile = column_tile(_VOCABULARY_TILE, x.dtype)
    out = torch.empty(num_rows, dtype=torch.int32, device=x.device)
    num_tiles = triton.cdiv(weight.num_out, tile)
    scores = torch.empty(num_rows, num_tiles, dtype=torch.float32, device=x.device)
    token_ids = torch.empty(num_rows, num_tiles, dtype=torch.int32, device=x.device)
    if num_rows:
        _best_of_tile[num_tiles, triton.cdiv(num_rows, rows)](
            x,
            weight.data,
            weight.data if weight.bias is None else weight.bias,
            scores,
            token_ids,
            num_rows,
            has_bias=weight.bias is not None,
            num_out=weight.num_out,
            num_in=weight.num_in,
            rows=rows,
            tile=tile,
            input_tile=column_tile(_INPUT_TILE, x.dtype),
            precision=dot_precision(x.dtype),
        )
        _best_of_tiles[(num_rows,)](
            scores, token_ids, out, num_tiles=num_tiles, tile=triton.next_power_of_2(num_tiles)
        )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _score_rows(
    x,
    weight,
    bias,
    out,
    num_rows,
    softcap,
    has_softcap: tl.constexpr,
    has_bias: tl.constexpr,
    num_out: tl.constexpr,
    num_in: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    input_tile: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    token_id = tl.program_id(0) * tile + tl.arange(0, tile)
    score = _score(
        x,
        weight,
        bias,
        row,
        token_id,
        num_rows,
        has_bias,
        num_out,
        num_in,
        rows,
        tile,
        input_tile,
        precision,
    )
    if has_softcap:
        score = softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)  # tanh
    place = row.to(tl.int64)[:, None] * num_out + token_id[None, :]
    tl.store(out + place, score, mask=(row < num_rows)[:, None] & (token_id < num_out)[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _best_of_tile(
    x,
    weight,
    bias,
    scores,
    token_ids,
    num_rows,
    has_bias: tl.constexpr,
    num_out: tl.constexpr,
    num_in: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    input_tile: tl.constexpr,
    precision: tl.constexpr,
):
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    token_id = tl.program_id(0) * tile + tl.arange(0, tile)
    score = _score(
        x,
        weight,
        bias,
        row,
        token_id,
        num_rows,
        has_bias,
        num_out,
        num_in,
        rows,
        tile,
        input_tile,
        precision,
    )
    score = tl.where((token_id < num_out)[None, :], score, float("-inf"))
    highest, place = tl.max(score, 1, return_indices=True, return_indices_tie_break_left=True)
    target = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(scores + target, highest, mask=row < num_rows)
    tl.store(token_ids + target, tl.program_id(0) * tile + place, mask=row < num_rows)


@triton.jit
def _best_of_tiles(scores, token_ids, out, num_tiles: tl.constexpr, tile: tl.constexpr):
    place = tl.arange(0, tile)
    start = tl.program_id(0) * num_tiles
    score = tl.load(scores + start + place, mask=place < num_tiles, other=float("-inf"))
    best = tl.argmax(score, 0, tie_break_left=True)
    tl.store(out + tl.program_id(0), tl.load(token_ids + start + best))


@triton.jit
def _score(
    x,
    weight,
    bias,
    row,
    token_id,
    num_rows,
    has_bias: tl.constexpr,
    num_out: tl.constexpr,
    num_in: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    input_tile: tl.constexpr,
    precision: tl.constexpr,
):
    """Multiply some rows with a tile of the weight, [rows, tile] float32."""
    is_row = (row < num_rows)[:, None]
    is_token = (token_id < num_out)[None, :]
    x_rows = x + row[:, None] * num_in
    weight_rows = weight + token_id.to(tl.int64)[None, :] * num_in
    score = tl.zeros([rows, tile], tl.float32)
    for first in range(0, num_in, input_tile):
        column = first + tl.arange(0, input_tile)
        is_column = column < num_in
        some = tl.load(x_rows + column[None, :], mask=is_row & is_column[None, :], other=0.0)
        part = tl.load(weight_rows + column[:, None], mask=is_token & is_column[:, None], other=0.0)
        score += tl.dot(some, part, input_precision=precision)
    if has_bias:
        score += tl.load(bias + token_id, mask=token_id < num_out, other=0.0)[None, :]
    return score
