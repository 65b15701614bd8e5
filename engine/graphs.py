"""GraphedModel: steps of single tokens are recorded once for a few sizes and replayed.

A small model's step is hundreds of kernels, each launched by Python for a few microseconds of work;
a CUDA graph launches them all at once. Owns which steps are replayed and what is recorded: a graph
reads the step buffers and writes a result of its own, both where they were at its recording. Steps
with prompt chunks, and those of more rows than the largest graph, are computed as they come. Must
not know sequences; engine/step_buffers.py fills the rows of a graph that a step does not use.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from engine.kernels.interface import RaggedBatch
from engine.model.decoder import Decoder
from engine.plan import GraphCost
from engine.step_buffers import Padding, StepBuffers


class Replayable(Protocol):
    """Work that was recorded: torch.cuda.CUDAGraph."""

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded work, and the tensor it fills each time it is replayed."""

    graph: Replayable
    hidden: torch.Tensor  # [rows, M]


Record = Callable[[Callable[[], torch.Tensor]], Recording]


class GraphedModel:
    """A decoder whose steps of single tokens are replayed."""

    @torch.inference_mode()
    def __init__(
        self, decoder: Decoder, buffers: StepBuffers, padding: Padding, record: Record
    ) -> None:
        """Record all sizes."""
        started = time.perf_counter()
        self._decoder = decoder
        self._padding = padding
        self._recordings: dict[int, Recording] = {}
        # The largest first: the others then fit into the memory it leaves.
        for num_rows in reversed(padding.row_counts):
            batch = buffers.fill_idle(num_rows)
            recording = record(partial(decoder.forward, batch))
            self._recordings[num_rows] = recording
            # Not recorded, since a step may need either; but compiled here and not while serving.
            decoder.best(recording.hidden)
            decoder.scores(recording.hidden)
        self.cost = GraphCost(padding.row_counts, time.perf_counter() - started)

    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """Compute a batch that lies in the buffers; return its sampled rows."""
        num_rows = len(batch.token_ids)
        is_single_tokens = num_rows == len(batch.context_lengths) == len(batch.sampled_rows)
        count = self._padding.rows_for(num_rows) if is_single_tokens else None
        if count is None:
            return self._decoder.forward(batch)
        recording = self._recordings[count]
        recording.graph.replay()
        return recording.hidden[:num_rows]

    def best(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the most likely token of each row."""
        return self._decoder.best(hidden)

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score the vocabulary for some rows."""
        return self._decoder.scores(hidden)


class CudaRecorder:
    """Records on the current device; all graphs share one pool of memory, as one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], torch.Tensor]) -> Recording:
        """Run once, so that kernels are compiled and libraries have their memory, then record."""
        compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            hidden = compute()
        return Recording(graph, hidden)


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Return the row counts worth a graph, so that few rows are idle: at most seven."""
    worthwhile = {1, 2, 4, *range(8, max_rows, 8)}
    return (*sorted(count for count in worthwhile if count < max_rows), max_rows)
