"""Attention over the paged cache for ragged batches, in one pass over each sequence's tokens.

Owns how a step is cut into programs: one for some rows of one sequence and the query heads that
share a key head, whose keys and values are then read once for all of them. Sums run in the order
of a sequence's tokens whatever else is in the step. Softmax is online (FlashAttention-2, Dao 2023,
section 3.1); programs find their sequence by bisection (vllm, triton_unified_attention.py).
"""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import AttentionShape, RaggedBatch
from engine.kernels.triton.tiles import column_tile, dot_precision, row_tile
from engine.kv_cache import LayerCache

_PROMPT_LANES = 64
_TOKENS = 64


def attend(
    qkv: torch.Tensor, batch: RaggedBatch, cache: LayerCache, shape: AttentionShape
) -> torch.Tensor:
    """Let each row's queries attend to its sequence's cached tokens up to itself, [T, H D]."""
    num_rows, num_sequences = len(qkv), len(batch.context_lengths)
    group = shape.num_heads // shape.num_kv_heads
    lanes = row_tile(group if num_rows == num_sequences else _PROMPT_LANES, qkv.dtype)
    lanes = max(lanes, triton.next_power_of_2(group))
    rows_per_tile = lanes // group
    out = torch.empty(
        num_rows, shape.num_heads * shape.head_dim, dtype=qkv.dtype, device=qkv.device
    )
    # A sequence's rows begin anywhere in a tile's, so each may need one tile more.
    num_tiles = num_rows // rows_per_tile + num_sequences
    _attend[num_tiles, shape.num_kv_heads](
        qkv,
        batch.row_starts,
        batch.context_lengths,
        batch.block_starts,
        batch.block_ids,
        cache.keys,
        cache.values,
        qkv if cache.scales is None else cache.scales,
        out,
        num_sequences,
        shape.scale,
        shape.softcap or 0.0,
        is_bytes=cache.scales is not None,
        has_softcap=shape.softcap is not None,
        window=shape.window or 0,
        block_size=cache.block_size,
        num_kv_heads=shape.num_kv_heads,
        group=group,
        head_dim=shape.head_dim,
        head_tile=max(16, triton.next_power_of_2(shape.head_dim)),
        lanes=lanes,
        rows_per_tile=rows_per_tile,
        token_tile=column_tile(_TOKENS if shape.head_dim <= 128 else _TOKENS // 2, qkv.dtype),
        precision=dot_precision(qkv.dtype),
        num_stages=2,
    )
    return out


@triton.jit(do_not_specialize=["num_sequences"])
def _attend(
    qkv,  # [T, (H + 2 G) D]
    row_starts,
    context_lengths,
    block_starts,
    block_ids,
    keys,  # [N, G, B, D]
    values,  # [N, G, B, D]
    scales,  # [N, G, 2, B]
    out,  # [T, H D]
    num_sequences,
    scale,
    softcap,
    is_bytes: tl.constexpr,
    has_softcap: tl.constexpr,
    window: tl.constexpr,  # 0: all tokens
    block_size: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    head_tile: tl.constexpr,
    lanes: tl.constexpr,
    rows_per_tile: tl.constexpr,
    token_tile: tl.constexpr,
    precision: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _sequence_of(tile, row_starts, num_sequences, rows_per_tile)
    first_row = tl.load(row_starts + sequence)
    num_rows = tl.load(row_starts + sequence + 1) - first_row
    skipped = (tile - first_row // rows_per_tile - sequence) * rows_per_tile
    if skipped >= num_rows:
        return
    context = tl.load(context_lengths + sequence)
    blocks = block_ids + tl.load(block_starts + sequence)

    lane = tl.arange(0, lanes)
    row = skipped + lane // group
    head = kv_head * group + lane % group
    dimension = tl.arange(0, head_tile)
    is_dimension = dimension < head_dim
    is_query = ((lane < rows_per_tile * group) & (row < num_rows))[:, None] & is_dimension[None, :]
    query_width = num_kv_heads * group * head_dim
    row_width = query_width + 2 * num_kv_heads * head_dim
    place = head[:, None] * head_dim + dimension[None, :]
    rows = (first_row + row).to(tl.int64)[:, None]
    queries = tl.load(qkv + rows * row_width + place, mask=is_query, other=0.0)

    position = context - num_rows + row  # of each lane
    end = tl.minimum(context, context - num_rows + skipped + rows_per_tile)
    begin = _first_seen(context - num_rows + skipped, window)
    start = begin // token_tile * token_tile  # so that tiles do not depend on the chunk
    highest = tl.full([lanes], float("-inf"), tl.float32)
    total = tl.zeros([lanes], tl.float32)
    attended = tl.zeros([lanes, head_tile], tl.float32)
    for first_token in range(start, end, token_tile):
        token = first_token + tl.arange(0, token_tile)
        is_token = (token >= begin) & (token < end)
        block = tl.load(blocks + token // block_size, mask=is_token, other=0).to(tl.int64)
        block_head = block * num_kv_heads + kv_head
        place_in_block = token % block_size
        cell = (block_head * block_size + place_in_block) * head_dim
        key_scale = scales + block_head * 2 * block_size + place_in_block
        # Whatever lies in slots that are not the sequence's, it must not become a term.
        is_key = is_dimension[:, None] & is_token[None, :]
        key = tl.load(keys + cell[None, :] + dimension[:, None], mask=is_key, other=0)
        score = tl.dot(queries, key.to(queries.dtype), input_precision=precision) * scale
        if is_bytes:
            score *= tl.load(key_scale, mask=is_token, other=0.0)[None, :]
        if has_softcap:
            score = softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)  # tanh
        is_seen = is_token[None, :] & _is_seen(token[None, :], position[:, None], window)
        score = tl.where(is_seen, score, float("-inf"))  # [lanes, tokens]

        new_highest = tl.maximum(highest, tl.max(score, 1))
        finite = tl.where(new_highest == float("-inf"), 0.0, new_highest)  # a lane may see nothing
        weight = tl.exp(score - finite[:, None])
        kept = tl.exp(highest - finite)
        highest = new_highest
        total = total * kept + tl.sum(weight, 1)
        if is_bytes:
            weight *= tl.load(key_scale + block_size, mask=is_token, other=0.0)[None, :]
        is_value = is_token[:, None] & is_dimension[None, :]
        value = tl.load(values + cell[:, None] + dimension[None, :], mask=is_value, other=0)
        product = tl.dot(
            weight.to(queries.dtype), value.to(queries.dtype), input_precision=precision
        )
        attended = attended * kept[:, None] + product
    attended = attended / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + rows * query_width + place, attended.to(out.dtype.element_ty), mask=is_query)


@triton.jit
def _sequence_of(tile, row_starts, num_sequences, rows_per_tile: tl.constexpr):
    """Find the last sequence whose tiles begin at or before this one."""
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        begins_at = tl.load(row_starts + middle) // rows_per_tile + middle
        if begins_at <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _first_seen(position, window: tl.constexpr):
    """Return the first token that a position sees; the block of one before it may be another's."""
    first = position * 0
    if window > 0:
        first = tl.maximum(position - window + 1, 0)
    return first


@triton.jit
def _is_seen(token, position, window: tl.constexpr):
    is_seen = token <= position
    if window > 0:
        is_seen &= token > position - window
    return is_seen
