"""Linear layers: one matrix product behind one call, in the fastest form the device has.

Owns packing. A packed weight is laid out once for oneDNN, which on a CPU is up to three times as
fast as torch's own product; the operators for it are private to torch, so plain weights stay as
fallback and as the oracle.
"""

from typing import Protocol

import torch
from torch.nn import functional

# oneDNN picks the layout for about this many rows; any number works with it.
_TYPICAL_ROWS = 32


class Linear(Protocol):
    """x @ weight.T + bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class PlainLinear:
    """torch's own product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """oneDNN's product with a weight packed once."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        pack = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001 there is no public one
        self._weight = pack(weight, _TYPICAL_ROWS)
        self._multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 there is no public one
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        product: torch.Tensor = self._multiply(x, self._weight, self._bias, "none", [], "")
        return product


def can_pack(device: torch.device) -> bool:
    """Tell whether oneDNN's packed product exists here; being private, it may not."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch
    return device.type == "cpu" and has_onednn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, is_packed: bool) -> Linear:
    """Make a layer; packing copies the weight and lets the original go."""
    return PackedLinear(weight, bias) if is_packed else PlainLinear(weight, bias)
