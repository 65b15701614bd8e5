"""Sampler: hidden states in, one token for each sequence out.

Owns the order of choosing: the model's own scores, then what the request adds to them, then the
mask of a constrained answer, then the draw. Log probabilities are the model's own, before any of
it. A batch in which every sequence only wants the likeliest token never sees its scores.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from engine.draw import Draw, draw_tokens, uniform_at
from engine.plan import Choice, TokenLogprobs
from engine.score_rules import apply_rules
from engine.sequence import Sequence
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
    def sample(self, hidden: torch.Tensor, sequences: list[Sequence]) -> list[Choice]:
        """Choose the next token of each sequence from its row; rows after theirs are not looked at.

        hidden is [R, M], the normalised hidden states of a step.
        """
        if not sequences:
            return []
        hidden = hidden[: len(sequences)]
        if all(map(_is_plain, sequences)):
            return [Choice(token_id) for token_id in self._head.best(hidden).tolist()]
        scores = self._head.scores(hidden)  # [R, V] float32
        own = {
            row: scores[row].log_softmax(-1)
            for row, sequence in enumerate(sequences)
            if sequence.sampling.num_logprobs is not None
        }
        apply_rules(scores, sequences)
        mask_scores(scores, sequences)
        token_ids: list[int] = scores.argmax(-1).tolist()
        draws = [
            Draw(row, sequence.sampling, self._next_uniform(sequence))
            for row, sequence in enumerate(sequences)
            if sequence.sampling.temperature > 0
        ]
        for draw, token_id in zip(draws, draw_tokens(scores, draws), strict=True):
            token_ids[draw.row] = token_id
        return [
            Choice(token_id, _logprobs(own[row], token_id, sequence) if row in own else None)
            for row, (token_id, sequence) in enumerate(zip(token_ids, sequences, strict=True))
        ]

    def _next_uniform(self, sequence: Sequence) -> float:
        if sequence.random_seed is None:
            seed = sequence.sampling.seed
            sequence.random_seed = self._draw_seed() if seed is None else seed
        return uniform_at(sequence.random_seed, sequence.num_output)


def _is_plain(sequence: Sequence) -> bool:
    """Tell whether the model's likeliest token is all that is wanted."""
    return sequence.sampling.is_plain and sequence.constraint is None


def _logprobs(own: torch.Tensor, token_id: int, sequence: Sequence) -> TokenLogprobs:
    """Look up the chosen token and the likeliest ones in the model's own distribution."""
    likeliest = own.topk(sequence.sampling.num_logprobs or 0)
    top = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return TokenLogprobs(float(own[token_id]), tuple(top))
