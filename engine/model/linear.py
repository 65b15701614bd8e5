"""Linear layers: one matrix product behind one call, in the fastest form the device has.

Owns packing. A packed weight is laid out once for oneDNN, which on a CPU is up to three times as fast as torch's own
product; the operators for it are private to torch, so plain weights stay as fallback and as the oracle.
"""

from typing import Protocol

import torch
from torch.nn import functional


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
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return product


# oneDNN picks the layout for about this many rows; others work with it too.
_TYPICAL_ROWS = 32


def can_pack(device: torch.device) -> bool:
    """Tell whether oneDNN's packed product works here."""
    return device.type == "cpu" and torch.backends.mkldnn.is_available()


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, is_packed: bool) -> Linear:
    """Make a layer; packing copies the weight and lets the original go."""
    return PackedLinear(weight, bias) if is_packed else PlainLinear(weight, bias)
