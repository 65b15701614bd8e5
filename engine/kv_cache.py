"""KvCache: the memory that blocks stand for.

Owns the layout. P values share 32 bits (P is 1 for float32, 2 for bfloat16): a key block keeps the
same P dimensions of all its tokens side by side, a value block the same dimension of P tokens, so
that both products of attention read whole vectors whose lanes hold P terms of one sum. Must not
know sequences; slot = block * B + place within the block.
"""

from dataclasses import dataclass

import torch

from engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer."""

    keys: torch.Tensor  # [N, G, D/P, B, P]
    values: torch.Tensor  # [N, G, B/P, D, P]

    @property
    def block_size(self) -> int:
        """Count the tokens of a block."""
        return self.keys.shape[3]


class KvCache:
    """Keys and values of all layers, allocated once."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        packing = 4 // dtype.itemsize
        heads = (num_blocks, config.num_kv_heads)
        key_shape = (*heads, config.head_dim // packing, block_size, packing)
        value_shape = (*heads, block_size // packing, config.head_dim, packing)
        # On a CPU the kernel hands out zeroed pages when they are first touched, so a block costs
        # memory from its first use on; elsewhere garbage could be a NaN that masking does not hide.
        allocate = torch.empty if device.type == "cpu" else torch.zeros
        self.layers = tuple(
            LayerCache(
                allocate(key_shape, dtype=dtype, device=device),
                allocate(value_shape, dtype=dtype, device=device),
            )
            for _ in range(config.num_layers)
        )


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Return the size of one block over all layers."""
    values_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return values_per_token * block_size * dtype.itemsize
