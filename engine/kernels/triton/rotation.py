"""Rotary positions and the write to the cache, in one pass over a row's heads.

One program for a head of a row: queries and keys are turned where they are (RoFormer, Su et al.
2021, section 3.4), keys and values also written to the token's slot. A turn's two coordinates are
read and written by the same lane, so no lane reads what another has already written. A cache of
bytes gets each head with a scale of its own.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import AttentionShape, RaggedBatch
from engine.kernels.triton.rounding import bytes_per_unit, rounded
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
        rope.cosines if cache.scales is None else cache.scales,
        is_bytes=cache.scales is not None,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=cache.block_size,
        half=half,
        half_tile=triton.next_power_of_2(half),
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
    scales,  # [N, G, 2, B]
    is_bytes: tl.constexpr,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    half: tl.constexpr,
    half_tile: tl.constexpr,
    kept_tile: tl.constexpr,
    head_tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    source = qkv + (row * (num_heads + 2 * num_kv_heads) + head) * head_dim
    slot = tl.load(slots + row).to(tl.int64)
    block, place = slot // block_size, slot % block_size

    if head >= num_heads + num_kv_heads:
        block_head = block * num_kv_heads + head - num_heads - num_kv_heads
        target = values + (block_head * block_size + place) * head_dim
        dimension = tl.arange(0, head_tile)
        is_dimension = dimension < head_dim
        value = tl.load(source + dimension, mask=is_dimension, other=0.0)
        per_unit = 1.0
        if is_bytes:
            largest = tl.max(tl.abs(value.to(tl.float32)), 0)
            per_unit = bytes_per_unit(largest)
            tl.store(scales + (block_head * 2 + 1) * block_size + place, largest / 127.0)
        _store(target + dimension, value, per_unit, is_dimension, is_bytes)
        return

    pair = tl.arange(0, half_tile)
    is_pair = pair < half
    angle = tl.load(positions + row).to(tl.int64) * half + pair
    cosine = tl.load(cosines + angle, mask=is_pair, other=0.0)
    sine = tl.load(sines + angle, mask=is_pair, other=0.0)
    first = tl.load(source + pair, mask=is_pair, other=0.0).to(tl.float32)
    second = tl.load(source + half + pair, mask=is_pair, other=0.0).to(tl.float32)
    turned_first = (first * cosine - second * sine).to(qkv.dtype.element_ty)
    turned_second = (second * cosine + first * sine).to(qkv.dtype.element_ty)
    tl.store(source + pair, turned_first, mask=is_pair)
    tl.store(source + half + pair, turned_second, mask=is_pair)
    if head < num_heads:
        return

    block_head = block * num_kv_heads + head - num_heads
    target = keys + (block_head * block_size + place) * head_dim
    kept = 2 * half + tl.arange(0, kept_tile)
    is_kept = kept < head_dim
    unturned = tl.load(source + kept, mask=is_kept, other=0.0)
    per_unit = 1.0
    if is_bytes:
        both = tl.maximum(tl.abs(turned_first.to(tl.float32)), tl.abs(turned_second.to(tl.float32)))
        largest = tl.maximum(tl.max(both, 0), tl.max(tl.abs(unturned.to(tl.float32)), 0))
        per_unit = bytes_per_unit(largest)
        tl.store(scales + block_head * 2 * block_size + place, largest / 127.0)
    _store(target + pair, turned_first, per_unit, is_pair, is_bytes)
    _store(target + half + pair, turned_second, per_unit, is_pair, is_bytes)
    _store(target + kept, unturned, per_unit, is_kept, is_bytes)


@triton.jit
def _store(target, values, per_unit, mask, is_bytes: tl.constexpr):
    """Store part of a head as it is, or as bytes."""
    if is_bytes:
        tl.store(target, rounded(values.to(tl.float32) * per_unit), mask=mask)
    else:
        tl.store(target, values, mask=mask)
