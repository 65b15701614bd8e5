"""TextKernels: plain operations on whole texts, through which gradients pass.

Owns what differs from ReferenceKernels where a text is read at once and nothing is cached: keys and
values are those in the rows. Products with bytes are those that serve, but for the gradient, which
passes rounding as if it were not there.
"""

import torch
from torch.nn import functional

from engine.kernels.interface import AttentionShape, Linear, RaggedBatch
from engine.kernels.reference import ReferenceKernels, attend_one, rotate
from engine.kv_cache import LayerCache
from engine.model.rope import RopeTable


class TextKernels(ReferenceKernels):
    """Kernels in one type of activations; each text is a whole prompt."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype, is_packed=False)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise a copy: gradients need what the residual was before it is added to."""
        return super().rms_norm(x.clone(), weight, eps)

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        if weight.scales is not None and weight.group_size is None:
            return _multiply_bytes(x, weight, weight.scales)
        return super().linear(x, weight)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,
        rope: RopeTable,
        cache: LayerCache,  # noqa: ARG002 nothing is stored
        shape: AttentionShape,
    ) -> None:
        """Rotate queries and keys in place."""
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        rotate(heads[:, : shape.num_heads + shape.num_kv_heads], batch.positions, rope)

    def attend(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,
        cache: LayerCache,  # noqa: ARG002 keys and values are in the rows
        shape: AttentionShape,
    ) -> torch.Tensor:
        """Let each row attend to the rows of its text up to itself."""
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        parts = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        attended = []
        for rows in torch.split(heads, batch.row_starts.diff().tolist()):
            queries, keys, values = torch.split(rows, parts, dim=1)
            keys, values = (part.transpose(0, 1).float() for part in (keys, values))
            attended.append(attend_one(queries, keys, values, shape))
        return torch.cat(attended).flatten(1)


def _multiply_bytes(x: torch.Tensor, weight: Linear, scales: torch.Tensor) -> torch.Tensor:
    """Multiply rows as bytes, each by its own scale; whole numbers up to 127 are exact in any type.

    Their sums may be rounded to x's type, as the product is in the end.
    """
    rows = x.float()
    steps = rows.detach().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    wished = rows / steps
    whole = (wished + (wished.round() - wished).detach()).to(x.dtype)
    product = functional.linear(whole, weight.data.to(x.dtype)).float() * (steps * scales)
    if weight.bias is not None:
        product = product + weight.bias
    return product.to(x.dtype)
