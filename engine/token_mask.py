"""Token masks: what may not come next in a constrained answer gets no chance."""

import torch

from engine.sequence import Sequence


def mask_scores(scores: torch.Tensor, sequences: list[Sequence]) -> None:
    """Set the scores of forbidden tokens to minus infinity, in place. One copy to the device."""
    vocab_size = scores.shape[1]
    num_bytes = -(-vocab_size // 8)
    rows: list[int] = []
    packed = bytearray()
    for row, sequence in enumerate(sequences):
        if sequence.constraint is not None:
            rows.append(row)
            mask = sequence.constraint.allowed_after(sequence.answer_ids)
            # A model may score more tokens than its tokenizer has; those are forbidden.
            packed += mask[:num_bytes].ljust(num_bytes, b"\0")
    if not rows:
        return
    masks = torch.frombuffer(packed, dtype=torch.uint8).to(scores.device)
    masks = masks.view(len(rows), num_bytes, 1)
    places = torch.arange(8, dtype=torch.uint8, device=scores.device)
    is_allowed = ((masks >> places) & 1).flatten(1)[:, :vocab_size].bool()  # [constrained, V]
    index = torch.tensor(rows, device=scores.device)
    scores[index] = scores[index].masked_fill(~is_allowed, float("-inf"))
