"""Poisson arrivals: when the requests of an open loop come, whatever the engine is doing.

A closed loop waits for answers before it asks again and so never shows a queue; an open one does.
"""

import random
from itertools import accumulate


def poisson_arrivals(rate: float, num_requests: int, seed: int) -> list[float]:
    """Return the instants, in seconds from the start, of arrivals at `rate` a second."""
    draw = random.Random(seed)  # noqa: S311 no secret
    return list(accumulate(draw.expovariate(rate) for _ in range(num_requests)))
