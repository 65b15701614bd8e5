"""Rows as signed bytes, for products and for the cache: a row's largest value becomes 127."""

import triton
import triton.language as tl


@triton.jit
def bytes_per_unit(largest):
    """Return what values are multiplied with to become bytes; a row of zeros stays one."""
    return 127.0 / tl.where(largest > 0, largest, float("inf"))


@triton.jit
def rounded(values):
    """Return the nearest whole numbers, of two as near the even one.

    Adding 1.5 * 2**23 leaves a float32 no room for a fraction; taking it away leaves the rest.
    """
    return ((values + 12582912.0) - 12582912.0).to(tl.int8)
