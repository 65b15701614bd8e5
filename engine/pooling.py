"""Pooler: the hidden states of a prompt become one vector, however many steps they come in.

Owns the sums of sequences that are not whole yet. A hidden state is what the model's last norm
returns; a vector is the sum of them or the last one, scaled to length one, which makes a mean of a
sum. Sums are float32 and go one row after another, so a vector has the same bits wherever its
chunks end and whatever runs beside it. A sequence that was preempted comes again from its first
token, and its sum begins anew. Must not know text or queues.
"""

from array import array

import torch

from engine.plan import Chunk, StepPlan

# A vector of zeros stays what it is instead of becoming NaN.
_SHORTEST = torch.finfo(torch.float32).tiny


class Pooler:
    """Makes the vectors of one engine."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}  # [M] float32 each

    @torch.inference_mode()
    def pool(self, hidden: torch.Tensor, plan: StepPlan) -> "dict[str, array[float]]":
        """Add a step's rows, the last ones of hidden [R, M]; return the vectors that are whole.

        If this raises, no sum has changed.
        """
        pooled = [chunk for chunk in plan.chunks if chunk.num_pooled]
        if not pooled:
            return {}
        sizes = [chunk.num_pooled for chunk in pooled]
        parts = torch.split_with_sizes(hidden[-sum(sizes) :], sizes)
        sums = {
            chunk.sequence.id: self._sum(chunk, rows)
            for chunk, rows in zip(pooled, parts, strict=True)
        }
        vectors = {
            chunk.sequence.id: _scaled(sums[chunk.sequence.id]) for chunk in pooled if chunk.is_last
        }
        self._sums |= sums
        for sequence_id in vectors:
            del self._sums[sequence_id]
        return vectors

    def forget(self, sequence_id: str) -> None:
        """Drop a sequence's sum, if it has one."""
        self._sums.pop(sequence_id, None)

    def _sum(self, chunk: Chunk, rows: torch.Tensor) -> torch.Tensor:
        """Return a sequence's sum with these rows, [M] float32."""
        known = self._sums.get(chunk.sequence.id) if chunk.start else None
        total = torch.zeros(rows.shape[1], device=rows.device) if known is None else known.clone()
        for row in rows.float().unbind():
            total += row
        return total


def _scaled(total: torch.Tensor) -> "array[float]":
    length = torch.linalg.vector_norm(total).clamp_min(_SHORTEST)
    return array("f", (total / length).tolist())
