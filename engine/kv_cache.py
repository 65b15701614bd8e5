"""KvCache: the memory that blocks stand for.

Owns the layouts. In words, P values share 32 bits (P is 1 for float32, 2 for bfloat16, 4 for
bytes): a key block keeps the same P dimensions of all its tokens side by side, a value block the
same dimension of P tokens, so that both products of attention read whole vectors whose lanes hold P
terms of one sum. In rows, each token's dimensions lie side by side, in keys and in values, as
tensor cores load them. Must not know sequences; slot = block * B + place within the block.

In a cache of bytes each token's key and value of each head has a scale of its own, its largest
value being 127: what is stored then depends on nothing but the token and those before it, whatever
else lies in the block or was computed in the same step.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch

from engine.model.config import ModelConfig

_SCALE_BYTES = 4


class CacheLayout(StrEnum):
    """How a block's values lie: in words for kernels on a CPU, in rows for those on a GPU."""

    WORDS = "words"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """What a block is like."""

    block_size: int
    dtype: torch.dtype
    layout: CacheLayout = CacheLayout.WORDS


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer. In rows, P is D for keys and 1 for values."""

    keys: torch.Tensor  # [N, G, D/P, B, P]
    values: torch.Tensor  # [N, G, B/P, D, P]
    scales: torch.Tensor | None = None  # [N, G, 2, B] float32 for bytes: of keys, then of values

    @property
    def block_size(self) -> int:
        """Count the tokens of a block."""
        return self.keys.shape[3]


class KvCache:
    """Keys and values of all layers, allocated once."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, blocks: CacheFormat, device: torch.device
    ) -> None:
        block_size, dtype = blocks.block_size, blocks.dtype
        key_packing = value_packing = 4 // dtype.itemsize
        if blocks.layout is CacheLayout.ROWS:
            key_packing, value_packing = config.head_dim, 1
        assert config.head_dim % key_packing == 0, "a key is whole words"
        heads = (num_blocks, config.num_kv_heads)
        key_shape = (*heads, config.head_dim // key_packing, block_size, key_packing)
        value_shape = (*heads, block_size // value_packing, config.head_dim, value_packing)
        scale_shape = (*heads, 2, block_size)
        # On a CPU the kernel hands out zeroed pages when they are first touched, so a block costs
        # memory from its first use on; elsewhere garbage could be a NaN that masking does not hide.
        allocate = torch.empty if device.type == "cpu" else torch.zeros
        self.layers = tuple(
            LayerCache(
                allocate(key_shape, dtype=dtype, device=device),
                allocate(value_shape, dtype=dtype, device=device),
                allocate(scale_shape, device=device) if dtype is torch.int8 else None,
            )
            for _ in range(config.num_layers)
        )


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Return the size of one block over all layers."""
    head_bytes = config.head_dim * dtype.itemsize + (_SCALE_BYTES if dtype is torch.int8 else 0)
    return 2 * config.num_layers * config.num_kv_heads * head_bytes * block_size
