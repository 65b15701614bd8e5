"""Draws: tokens by chance, each from its own stream of numbers.

Randomness is a function of a sequence's seed and how many tokens it has, nothing else, so a
preempted, moved or repeated sequence draws the same numbers whatever runs beside it.
"""

from dataclasses import dataclass

import torch

from engine.sequence import SamplingParams

# Sorting a whole vocabulary costs more than the rest of the sampling: when only likely tokens
# count, they are almost always among the first so many, else among more.
_NUM_CANDIDATES = (512, 8192)

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """One row of scores to draw from, and the number between 0 and 1 that decides."""

    row: int
    sampling: SamplingParams
    uniform: float


def uniform_at(seed: int, index: int) -> float:
    """Return the index-th number in [0, 1) of a seed's stream (SplitMix64, Steele et al. 2014)."""
    mixed = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


def draw_tokens(scores: torch.Tensor, draws: list[Draw]) -> list[int]:
    """Draw one token from each row's distribution, as its temperature and limits leave it."""
    return [_draw(scores[draw.row], draw.sampling, draw.uniform) for draw in draws]


def _draw(scores: torch.Tensor, sampling: SamplingParams, uniform: float) -> int:
    probabilities = (scores / sampling.temperature).softmax(-1)  # [V]
    if sampling.top_k == 0 and sampling.top_p == 1.0 and sampling.min_p == 0.0:
        return _place(probabilities.cumsum(-1), uniform)
    num_tokens = len(probabilities)
    limit = min(sampling.top_k or num_tokens, num_tokens)
    for num_candidates in (*_NUM_CANDIDATES, limit):
        likely, token_ids = probabilities.topk(min(limit, num_candidates))
        if len(likely) == limit or _holds_all(likely, sampling):
            break
    return int(token_ids[_place(_keep(likely, sampling), uniform)])


def _holds_all(likely: torch.Tensor, sampling: SamplingParams) -> bool:
    """Tell whether every token that may be drawn is among the likely ones."""
    if sampling.top_k:
        return False  # the shares below are of what top_k leaves, so all of that is needed
    is_enough = sampling.top_p < 1.0 and float(likely.sum()) >= sampling.top_p
    return is_enough or bool(likely[-1] < sampling.min_p * likely[0])


def _keep(likely: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Return the running sums of the probabilities that the limits leave, likeliest first."""
    if sampling.top_k:
        likely = likely / likely.sum()  # top_p is a share of what top_k leaves
    sums = likely.cumsum(-1)
    is_kept = sums - likely < sampling.top_p  # what comes before it is not enough yet
    is_kept &= likely >= sampling.min_p * likely[0]
    return sums[: max(1, int(is_kept.sum()))]


def _place(sums: torch.Tensor, uniform: float) -> int:
    """Return where in running sums a share of their total falls."""
    place = torch.searchsorted(sums, uniform * sums[-1], right=True)
    return min(int(place), len(sums) - 1)
