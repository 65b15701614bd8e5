"""Pooler: the hidden states of a prompt become one vector, however many steps they come in.

Owns the sums of sequences that are not whole yet. A hidden state is what the model's last norm
returns; a vector is the sum of them or the last one, scaled to length one, which makes a mean of a
sum. Sums are float32, and on a CPU they go one row after another, so a vector has the same bits
wherever its chunks end and whatever runs beside it. A sequence that was preempted comes again from
its first token, and its sum begins anew. Must not know text or queues.
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
        ids = [chunk.sequence.id for chunk in pooled]
        sums = dict(zip(ids, self._add(hidden, pooled).unbind(), strict=True))
        whole = [chunk.sequence.id for chunk in pooled if chunk.is_last]
        vectors = _scaled([sums[sequence_id] for sequence_id in whole])
        self._sums |= sums
        for sequence_id in whole:
            del self._sums[sequence_id]
        return dict(zip(whole, vectors, strict=True))

    def forget(self, sequence_id: str) -> None:
        """Drop a sequence's sum, if it has one."""
        self._sums.pop(sequence_id, None)

    def _add(self, hidden: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
        """Return the sums of these chunks' sequences with the chunks' rows, [S, M] float32."""
        sizes = [chunk.num_pooled for chunk in chunks]
        rows = hidden[-sum(sizes) :].float()
        nothing = torch.zeros_like(rows[0])
        totals = torch.stack(
            [
                self._sums.get(chunk.sequence.id, nothing) if chunk.start else nothing
                for chunk in chunks
            ]
        )
        owners = torch.arange(len(chunks)).repeat_interleave(torch.tensor(sizes))
        return totals.index_add_(0, owners.to(rows.device), rows)


def _scaled(sums: list[torch.Tensor]) -> "list[array[float]]":
    if not sums:
        return []
    totals = torch.stack(sums)
    lengths = torch.linalg.vector_norm(totals, dim=-1, keepdim=True).clamp_min(_SHORTEST)
    return [array("f", vector) for vector in (totals / lengths).tolist()]
