"""What the kernels for a GPU agree on: how products are computed, and how wide tiles are."""

import torch
import triton


def dot_precision(dtype: torch.dtype) -> str:
    """Return how tensor cores shall multiply: float32 must not become tf32, which rounds it."""
    return "ieee" if dtype is torch.float32 else "tf32"


def is_interpreted() -> bool:
    """Tell whether kernels run in Triton's interpreter, on any device and slowly."""
    return bool(triton.knobs.runtime.interpret)


def row_tile(num_rows: int) -> int:
    """Return how many rows of a product a program computes; tensor cores want at least 16."""
    fitting: int = triton.next_power_of_2(num_rows)
    return min(64, max(16, fitting))
