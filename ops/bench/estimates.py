"""Percentiles, and how sure one may be of them.

Owns the bench's statistics. Knows nothing of engines or of time.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds it lies within, 95 times of 100."""

    estimate: float
    low: float
    high: float


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, linear between neighbours as numpy's default is."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentile_interval(
    values: Sequence[float], percent: float, seed: int = 0, num_resamples: int = 500
) -> Interval:
    """Return a percentile with its bootstrap interval (Efron 1979).

    The percentile of as many values drawn with replacement, many times over, varies about as much
    as that of a new run would. Values that depend on their neighbours, as latencies in a queue do,
    vary more than it says.
    """
    draw = random.Random(seed)  # noqa: S311 no secret
    resampled = sorted(
        percentile(draw.choices(values, k=len(values)), percent) for _ in range(num_resamples)
    )
    return Interval(
        percentile(values, percent), percentile(resampled, 2.5), percentile(resampled, 97.5)
    )


def interpolate(places: Sequence[float], values: Sequence[float], place: float) -> float:
    """Return the value at a place between the first and the last, linear; nothing costs nothing."""
    if place == 0:
        return 0.0
    above = bisect_left(places, place)
    if places[above] == place:
        return values[above]
    part = (place - places[above - 1]) / (places[above] - places[above - 1])
    return values[above - 1] + part * (values[above] - values[above - 1])


def growth(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the exponent of y ~ x**exponent through two points (x, y): 2 is quadratic."""
    return math.log(after[1] / before[1]) / math.log(after[0] / before[0])
