"""Sampler: hidden states in, one token for each sequence out.

Owns every way of choosing. Randomness is a function of the sequence's seed and how many tokens it
has, nothing else, so a preempted, moved or repeated sequence draws the same numbers whatever runs
beside it.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from engine.sequence import SamplingParams, Sequence
from engine.token_mask import mask_scores


class Head(Protocol):
    """Scores the vocabulary for hidden states; best never lays the scores out."""

    def best(self, hidden: torch.Tensor) -> torch.Tensor: ...

    def scores(self, hidden: torch.Tensor) -> torch.Tensor: ...


class Sampler:
    """Chooses tokens for one model."""

    def __init__(self, head: Head, draw_seed: Callable[[], int]) -> None:
        """Take the model's head, and where seeds come from for sequences that name none."""
        self._head = head
        self._draw_seed = draw_seed

    @torch.inference_mode()
    def sample(self, hidden: torch.Tensor, sequences: list[Sequence]) -> list[int]:
        """Choose the next token of each sequence from its row."""
        if not sequences:
            return []
        if all(map(_is_plain, sequences)):
            best: list[int] = self._head.best(hidden).tolist()
            return best
        scores = self._head.scores(hidden)  # [R, V] float32
        mask_scores(scores, sequences)
        chosen: list[int] = scores.argmax(-1).tolist()
        for row, sequence in enumerate(sequences):
            if sequence.sampling.temperature > 0:
                uniform = self._next_uniform(sequence)
                chosen[row] = _choose(scores[row], sequence.sampling, uniform)
        return chosen

    def _next_uniform(self, sequence: Sequence) -> float:
        if sequence.random_seed is None:
            seed = sequence.sampling.seed
            sequence.random_seed = self._draw_seed() if seed is None else seed
        return uniform_at(sequence.random_seed, sequence.num_output)


def _is_plain(sequence: Sequence) -> bool:
    """Tell whether the likeliest token is the one to take."""
    return sequence.sampling.temperature == 0 and sequence.constraint is None


def uniform_at(seed: int, index: int) -> float:
    """Return the index-th number in [0, 1) of a seed's stream (SplitMix64, Steele et al. 2014)."""
    mixed = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)


_MASK = (1 << 64) - 1


def _choose(scores: torch.Tensor, sampling: SamplingParams, uniform: float) -> int:
    """Draw from what temperature, top-k, top-p and min-p leave of the distribution."""
    limit = min(sampling.top_k or len(scores), len(scores))
    likely, token_ids = (scores / sampling.temperature).topk(limit)  # most likely first
    probabilities = likely.softmax(-1)
    cumulative = probabilities.cumsum(-1)
    is_kept = cumulative - probabilities < sampling.top_p  # what comes before it is not enough yet
    is_kept &= probabilities >= sampling.min_p * probabilities[0]
    kept = cumulative[: int(is_kept.sum())]
    place = torch.searchsorted(kept, uniform * kept[-1], right=True)
    return int(token_ids[min(int(place), len(kept) - 1)])
