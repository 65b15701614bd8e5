"""Rotary positions and the write to the cache, in one pass over a row's heads.

One program for a head of a row: queries and keys are turned where they are (RoFormer, Su et al.
2021, section 3.4), keys and values also written to the token's slot. A turn's two coordinates are
read and written by the same lane, so no lane reads what another has already written.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import AttentionShape, RaggedBatch
from engine.kv_cache import LayerCache
from engine.model.rope import RopeTable


def rotate_and_store(
    qkv: torch.Tensor,
    batch: RaggedBatch,
    rope: RopeTable,
    cache: LayerCache,
    shape: AttentionShape,
) -> None:
    """Rotate queries and keys in place and write keys and values to the cache."""
    half = rope.cosines.shape[1]
    num_kept = shape.head_dim - 2 * half  # dimensions at the end of a head that do not turn
    _rotate_and_store[len(qkv), shape.num_heads + 2 * shape.num_kv_heads](
        qkv,
        batch.positions,
        batch.slots,
        rope.cosines,
        rope.sines,
        cache.keys,
        cache.values,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=cache.block_size,
        half=half,
        half_tile=triton.next_power_of_2(half),
        num_kept=num_kept,
        kept_tile=triton.next_power_of_2(max(1, num_kept)),
        head_tile=triton.next_power_of_2(shape.head_dim),
        num_warps=1,
    )


@triton.jit
def _rotate_and_store(
    qkv,  # [T, (H + 2 G) D]
    positions,
    slots,
    cosines,  # [max_context, half]
    sines,
    keys,  # [N, G, B, D]
    values,  # [N, G, B, D]
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    half: tl.constexpr,
    half_tile: tl.constexpr,
    num_kept: tl.constexpr,
    kept_tile: tl.constexpr,
    head_tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    source = qkv + (row * (num_heads + 2 * num_kv_heads) + head) * head_dim
    slot = tl.load(slots + row).to(tl.int64)
    block = slot // block_size
    place = slot % block_size

    if head >= num_heads + num_kv_heads:
        kv_head = head - num_heads - num_kv_heads
        target = values + ((block * num_kv_heads + kv_head) * block_size + place) * head_dim
        dimension = tl.arange(0, head_tile)
        is_dimension = dimension < head_dim
        value = tl.load(source + dimension, mask=is_dimension)
        tl.store(target + dimension, value, mask=is_dimension)
        return

    pair = tl.arange(0, half_tile)
    is_pair = pair < half
    angle = tl.load(positions + row).to(tl.int64) * half + pair
    cosine = tl.load(cosines + angle, mask=is_pair)
    sine = tl.load(sines + angle, mask=is_pair)
    first = tl.load(source + pair, mask=is_pair).to(tl.float32)
    second = tl.load(source + half + pair, mask=is_pair).to(tl.float32)
    turned_first = (first * cosine - second * sine).to(qkv.dtype.element_ty)
    turned_second = (second * cosine + first * sine).to(qkv.dtype.element_ty)
    tl.store(source + pair, turned_first, mask=is_pair)
    tl.store(source + half + pair, turned_second, mask=is_pair)
    if head >= num_heads:
        kv_head = head - num_heads
        target = keys + ((block * num_kv_heads + kv_head) * block_size + place) * head_dim
        tl.store(target + pair, turned_first, mask=is_pair)
        tl.store(target + half + pair, turned_second, mask=is_pair)
        if num_kept > 0:
            kept = 2 * half + tl.arange(0, kept_tile)
            is_kept = kept < head_dim
            unturned = tl.load(source + kept, mask=is_kept)
            tl.store(target + kept, unturned, mask=is_kept)
