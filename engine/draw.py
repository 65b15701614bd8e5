"""Draws: tokens by chance, each from its own stream of numbers.

Randomness is a function of a sequence's seed and how many tokens it has, nothing else, so a
preempted, moved or repeated sequence draws the same numbers whatever runs beside it.
"""

from dataclasses import dataclass

import torch

from engine.sequence import SamplingParams

# Sorting a whole vocabulary costs more than the rest of the sampling: when only likely tokens
# count, they are almost always among the first so many, else among more.
_NUM_CANDIDATES = (64, 512, 2048, 8192)

# A CPU draws from fewer rows at once: a megabyte stays in its cache, and more than that the
# allocator gives back to the system each time. 32 rows of 49,152 took 14 ms in one piece, nearly
# all of it for new pages; in pieces, as row by row, under 3.
_VALUES_AT_ONCE_ON_CPU = 1 << 18

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
    """Draw one token from each row's distribution, as its temperature and limits leave it.

    Rows with the same limits are drawn at once, each as if it were alone.
    """
    groups: dict[_Limits, list[Draw]] = {}
    for draw in draws:
        limits = _Limits(draw.sampling.top_k, draw.sampling.top_p, draw.sampling.min_p)
        groups.setdefault(limits, []).append(draw)
    token_ids: dict[int, int] = {}
    size = _rows_at_once(scores)
    for limits, group in groups.items():
        for first in range(0, len(group), size):
            token_ids |= _draw_group(scores, limits, group[first : first + size])
    return [token_ids[draw.row] for draw in draws]


@dataclass(frozen=True, slots=True)
class _Limits:
    """Which tokens may be drawn, as SamplingParams has it."""

    top_k: int
    top_p: float
    min_p: float


def _rows_at_once(scores: torch.Tensor) -> int:
    if scores.device.type == "cpu":
        return max(1, _VALUES_AT_ONCE_ON_CPU // scores.shape[1])
    return len(scores)


def _draw_group(scores: torch.Tensor, limits: _Limits, draws: list[Draw]) -> dict[int, int]:
    """Draw for rows with the same limits; return each row's token."""
    rows = [draw.row for draw in draws]
    temperatures = _column([draw.sampling.temperature for draw in draws], scores)
    uniforms = _column([draw.uniform for draw in draws], scores)
    probabilities = (_rows_of(scores, rows) / temperatures).softmax(-1)  # [n, V]
    return dict(zip(rows, _draw(probabilities, limits, uniforms).tolist(), strict=True))


def _rows_of(scores: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Return rising rows, without a copy where they follow each other."""
    after = rows[0] + len(rows)
    return scores[rows[0] : after] if rows[-1] == after - 1 else scores[rows]


def _draw(probabilities: torch.Tensor, limits: _Limits, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw from rows of probabilities [n, V] by numbers [n, 1]; return tokens [n]."""
    num_tokens = probabilities.shape[1]
    if limits == _Limits(top_k=0, top_p=1.0, min_p=0.0):
        num_kept = torch.full_like(uniforms, num_tokens, dtype=torch.int64)
        return _place(probabilities.cumsum(-1), num_kept, uniforms)[:, 0]
    if limits.top_k:
        return _draw_likely(probabilities, limits, uniforms, [min(limits.top_k, num_tokens)])
    counts = sorted({min(count, num_tokens) for count in (*_NUM_CANDIDATES, num_tokens)})
    return _draw_likely(probabilities, limits, uniforms, counts)


def _draw_likely(
    probabilities: torch.Tensor, limits: _Limits, uniforms: torch.Tensor, counts: list[int]
) -> torch.Tensor:
    """Draw among as many likely tokens as the first of counts; where it is not enough, the next.

    The count may decide which of equally likely tokens comes first, so it is each row's own matter.
    """
    likely, token_ids = probabilities.topk(counts[0])  # [n, count] each
    sums, num_kept = _keep(likely, limits)
    drawn = token_ids.gather(-1, _place(sums, num_kept, uniforms))[:, 0]
    if len(counts) > 1:
        left = ~_holds_all(likely, limits)
        if left.any():
            drawn[left] = _draw_likely(probabilities[left], limits, uniforms[left], counts[1:])
    return drawn


def _holds_all(likely: torch.Tensor, limits: _Limits) -> torch.Tensor:
    """Tell of each row whether every token that may be drawn is among the likely ones, [n]."""
    is_below = likely[:, -1] < limits.min_p * likely[:, 0]
    return is_below if limits.top_p == 1.0 else is_below | (likely.sum(-1) >= limits.top_p)


def _keep(likely: torch.Tensor, limits: _Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """Return running sums of probabilities, likeliest first, and how many the limits leave."""
    if limits.top_k:
        likely = likely / likely.sum(-1, keepdim=True)  # top_p is a share of what top_k leaves
    sums = likely.cumsum(-1)
    is_kept = sums - likely < limits.top_p  # what comes before it is not enough yet
    is_kept &= likely >= limits.min_p * likely[:, :1]
    return sums, is_kept.sum(-1, keepdim=True).clamp_min(1)


def _place(sums: torch.Tensor, num_kept: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return where in the running sums that are kept a share of their total falls, [n, 1]."""
    last = num_kept - 1
    places = torch.searchsorted(sums, uniforms * sums.gather(-1, last), right=True)
    return places.minimum(last)


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
