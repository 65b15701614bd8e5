"""ReferenceKernels: what each operation means, in plain PyTorch, on any device.

Written to be read and to be right; sums and softmax are float32. Must stay free of shortcuts, since
every fast implementation is tested against it.
"""

import torch
from torch.nn import functional

from engine.kernels.interface import AttentionShape, RaggedBatch
from engine.kv_cache import LayerCache
from engine.model.rope import RopeTable


class ReferenceKernels:
    """The plain implementation of Kernels."""

    name = "reference"

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root mean square normalisation (Zhang and Sennrich 2019)."""
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return normed.to(weight.dtype) * weight

    def add_rms_norm(
        self, residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add update to the residual in place, then normalise it."""
        residual += update
        return self.rms_norm(residual, weight, eps)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,  # [T, (H + 2 G) D]
        batch: RaggedBatch,
        rope: RopeTable,
        cache: LayerCache,
        shape: AttentionShape,
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the cache."""
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)  # [T, H + 2 G, D]
        num_turned = shape.num_heads + shape.num_kv_heads
        _rotate(heads[:, :num_turned], batch.positions, rope)
        keys = heads[:, shape.num_heads : num_turned]  # [T, G, D]
        values = heads[:, num_turned:]  # [T, G, D]
        blocks = batch.slots // cache.block_size  # [T]
        places = batch.slots % cache.block_size  # [T]
        packing = cache.keys.shape[-1]
        cache.keys[blocks, :, :, places] = keys.view(*keys.shape[:2], -1, packing)
        cache.values[blocks, :, places // packing, :, places % packing] = values

    def attend(
        self, qkv: torch.Tensor, batch: RaggedBatch, cache: LayerCache, shape: AttentionShape
    ) -> torch.Tensor:
        """Let each row's queries attend to its sequence's cached tokens up to itself."""
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        queries = heads[:, : shape.num_heads]  # [T, H, D]
        out = torch.empty_like(queries)
        row_starts = batch.row_starts.tolist()
        block_starts = batch.block_starts.tolist()
        for index, length in enumerate(batch.context_lengths.tolist()):
            rows = slice(row_starts[index], row_starts[index + 1])
            blocks = batch.block_ids[block_starts[index] : block_starts[index + 1]]
            keys, values = _gather(cache, blocks, length)  # [G, length, D]
            out[rows] = _attend_one(queries[rows], keys, values, shape)
        return out.flatten(1)  # [T, H D]

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """SwiGLU's product (Shazeer 2020)."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up


def _rotate(heads: torch.Tensor, positions: torch.Tensor, rope: RopeTable) -> None:
    cosines = rope.cosines[positions][:, None]  # [T, 1, rotated / 2]
    sines = rope.sines[positions][:, None]
    half = cosines.shape[-1]
    first = heads[..., :half].float()
    second = heads[..., half : 2 * half].float()
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)
    heads[..., : 2 * half] = turned


def _gather(
    cache: LayerCache, blocks: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Collect a sequence's keys and values.

    Only the slots it has filled, the rest may hold anything.
    """
    keys = cache.keys[blocks].permute(1, 0, 3, 2, 4)  # [G, n, B, D/P, P]
    values = cache.values[blocks].permute(1, 0, 2, 4, 3)  # [G, n, B/P, P, D]
    return keys.flatten(3).flatten(1, 2)[:, :length], values.flatten(1, 3)[:, :length]


def _attend_one(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    num_rows = queries.shape[0]
    length = keys.shape[1]
    grouped = queries.float().view(num_rows, shape.num_kv_heads, -1, shape.head_dim)
    scores = torch.einsum("rghd,gld->ghrl", grouped, keys.float()) * shape.scale
    row_positions = torch.arange(length - num_rows, length, device=keys.device)[:, None]
    distance = row_positions - torch.arange(length, device=keys.device)  # [rows, length]
    hidden = distance < 0
    if shape.window is not None:
        hidden |= distance >= shape.window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    attended = torch.einsum("ghrl,gld->rghd", weights, values.float())
    return attended.flatten(1, 2).to(queries.dtype)  # [rows, H, D]
