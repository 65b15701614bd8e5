"""Score rules: what a request adds to or takes from the model's scores before a token is chosen.

Logit bias adds to named tokens. The repetition penalty (CTRL, Keskar et al. 2019, section 4.1)
weakens tokens of prompt and answer; presence and frequency penalties count the answer's tokens
only, as the OpenAI interface defines them.
"""

from collections import Counter

import torch

from engine.sequence import Sequence


def apply_rules(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    """Change each sequence's row of scores in place, as its request wants."""
    for row, sequence in enumerate(sequences):
        if sequence.sampling.repetition_penalty != 1.0:
            _penalise_repetition(scores[row], sequence)
        if sequence.sampling.presence_penalty or sequence.sampling.frequency_penalty:
            _penalise_answer(scores[row], sequence)
        if sequence.sampling.logit_bias:
            _add(scores[row], sequence.sampling.logit_bias)


def _penalise_repetition(scores: torch.Tensor, sequence: Sequence) -> None:
    penalty = sequence.sampling.repetition_penalty
    seen = torch.tensor(list(set(sequence.known_ids)), device=scores.device)
    before = scores[seen]
    scores[seen] = torch.where(before > 0, before / penalty, before * penalty)


def _penalise_answer(scores: torch.Tensor, sequence: Sequence) -> None:
    sampling = sequence.sampling
    counts = Counter(sequence.answer_ids)
    changes = {
        token_id: -(sampling.presence_penalty + sampling.frequency_penalty * count)
        for token_id, count in counts.items()
    }
    _add(scores, changes)


def _add(scores: torch.Tensor, changes: dict[int, float]) -> None:
    if changes:
        token_ids = torch.tensor(list(changes), device=scores.device)
        scores[token_ids] += torch.tensor(list(changes.values()), device=scores.device)
