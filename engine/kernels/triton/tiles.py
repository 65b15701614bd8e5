"""What the kernels for a GPU agree on: how products are computed, and how large their tiles are.

Tensor cores multiply half precision. float32 would become tf32 there, which rounds it, so it is
multiplied without them, in tiles small enough to compile quickly: it serves comparisons, not speed.
"""

import torch
import triton

_FEWEST_ROWS = 16  # of a product on tensor cores
_MOST_ROWS = 64


def dot_precision(dtype: torch.dtype) -> str:
    """Return how to multiply: as float32 says, or as tensor cores do."""
    return "ieee" if dtype is torch.float32 else "tf32"


def row_tile(num_rows: int, dtype: torch.dtype) -> int:
    """Return how many rows of a product a program computes."""
    if dtype is torch.float32:
        return _FEWEST_ROWS
    fitting: int = triton.next_power_of_2(num_rows)
    return min(_MOST_ROWS, max(_FEWEST_ROWS, fitting))


def column_tile(largest: int, dtype: torch.dtype) -> int:
    """Return how many columns, or terms of a sum, a program takes at once."""
    return largest // 2 if dtype is torch.float32 else largest


def is_interpreted() -> bool:
    """Tell whether kernels run in Triton's interpreter, on any device and slowly."""
    return bool(triton.knobs.runtime.interpret)
