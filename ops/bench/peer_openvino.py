"""OpenVINO GenAI's continuous batching on a task; runs in an environment of its own.

python -m ops.bench.peer_openvino TASK OUTCOME, with settings `weights` (fp32 or int8) and
`precision` (f32 or bf16, of the computation and the KV cache).
"""

import subprocess
import sys
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found] # lives in an environment of its own
import openvino_genai  # type: ignore[import-not-found] # as above

from ops.bench.closed_loop import Answer, run_closed_loop
from ops.bench.task import Outcome, Task, TokenRequest, run_task

_KV_TOKENS = 32_768
_BLOCK_SIZE = 32  # fixed by its CPU plugin


def run(task: Task) -> Outcome:
    """Export the model if that was not done yet, then run the task."""
    exported = _export(Path(task.model), task.settings["weights"])
    return run_closed_loop(_OpenVino(exported, task), task)


def _export(model: Path, weights: str) -> Path:
    """Convert the weights once, beside the environment; a half-made folder never has the name."""
    target = Path(sys.prefix) / f"{model.name}-{weights}"
    if target.exists():
        return target
    partial = target.with_suffix(".partial")
    command = [str(Path(sys.prefix) / "bin" / "optimum-cli"), "export", "openvino"]
    options = ["--model", str(model), "--task", "text-generation-with-past"]
    subprocess.run(
        [*command, *options, "--weight-format", weights, str(partial)],
        check=True,
        stdout=sys.stderr,
    )
    partial.rename(target)
    return target


class _OpenVino:
    """Its batch is not capped by max_num_seqs with dynamic_split_fuse: the client caps it."""

    def __init__(self, exported: Path, task: Task) -> None:
        self.version = f"OpenVINO GenAI {version('openvino-genai')}"
        limits = openvino_genai.SchedulerConfig()
        limits.num_kv_blocks = _KV_TOKENS * max(1, task.in_flight // 32) // _BLOCK_SIZE
        limits.max_num_batched_tokens = 512
        limits.max_num_seqs = max(task.in_flight, 2)
        limits.dynamic_split_fuse = True
        limits.enable_prefix_caching = False
        properties = {
            "INFERENCE_PRECISION_HINT": task.settings["precision"],
            "KV_CACHE_PRECISION": task.settings["precision"],
            "INFERENCE_NUM_THREADS": task.settings["threads"],
        }
        self._pipeline: Any = openvino_genai.ContinuousBatchingPipeline(
            str(exported), limits, "CPU", properties
        )
        self._handles: dict[str, Any] = {}
        self._ids = count()

    def add(self, request: TokenRequest) -> None:
        """Let a request join."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = request.max_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = openvino.Tensor(np.array([request.prompt_ids], dtype=np.int64))
        self._handles[request.id] = self._pipeline.add_request(next(self._ids), ids, config)

    def step(self) -> list[Answer]:
        """Compute one step and collect what has ended."""
        self._pipeline.step()
        finished = openvino_genai.GenerationStatus.FINISHED
        ended = [id for id, handle in self._handles.items() if handle.get_status() == finished]
        return [Answer(id, self._tokens(self._handles.pop(id))) for id in ended]

    def _tokens(self, handle: Any) -> list[int]:
        (output,) = handle.read_all()
        return [int(token_id) for token_id in output.generated_ids]


if __name__ == "__main__":
    run_task(sys.argv[1:], run)
