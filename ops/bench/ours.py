"""Our engine on a task.

python -m ops.bench.ours TASK OUTCOME, with the setting `dtype`.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import torch

from engine.config import ComputeType, EngineConfig
from engine.engine import Engine
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence
from ops.bench.closed_loop import Answer, run_closed_loop
from ops.bench.task import Outcome, Task, TokenRequest, run_task

KV_TOKENS = 32_768  # for each 32 requests in flight, as every peer has
_BLOCK_SIZE = 16


def run(task: Task) -> Outcome:
    """Run the task."""
    return run_closed_loop(OurEngine(load(task)), task)


def load(task: Task, *, prefix_caching: bool = False) -> Engine[torch.Tensor]:
    """Load the engine as the task wants it."""
    return load_engine(
        Path(task.model),
        EngineConfig(
            dtype=ComputeType(task.settings["dtype"]),
            block_size=_BLOCK_SIZE,
            num_blocks=KV_TOKENS * max(1, task.in_flight // 32) // _BLOCK_SIZE,
            max_sequences=task.in_flight,
            prefix_caching=prefix_caching,
        ),
    )


def as_sequence(request: TokenRequest) -> Sequence:
    """Ask for exactly max_tokens, greedily."""
    sampling = SamplingParams(max_tokens=request.max_tokens, ignore_eos=True)
    return Sequence(request.id, request.prompt_ids, sampling)


class OurEngine:
    """Our engine, stepped by the client all engines share."""

    def __init__(self, engine: Engine[torch.Tensor]) -> None:
        self.version = f"promptmill {version('promptmill')} ({engine.facts.kernels})"
        self._engine = engine

    def add(self, request: TokenRequest) -> None:
        """Let a request join."""
        self._engine.add(as_sequence(request))

    def step(self) -> list[Answer]:
        """Compute one step and collect what has ended."""
        return [
            Answer(done.sequence_id, list(done.token_ids)) for done in self._engine.step().finished
        ]


if __name__ == "__main__":
    run_task(sys.argv[1:], run)
