"""transformers on a task; runs in an environment of its own.

python -m ops.bench.peer_transformers TASK OUTCOME, with settings `dtype` and `mode`: `alone`
generates for one request after another, `continuous` uses transformers' own continuous batching.
"""

import sys
import time
from typing import Any

import torch
import transformers

from ops.bench.task import Outcome, Task, TokenRequest, run_task

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_KV_TOKENS = 32_768
_PAGE_SIZE = 256
_NO_TOKEN = -1  # transformers' way to say that nothing ends an answer
_WARM_UP = TokenRequest("warm-up", [1, 2, 3], 4)


def run(task: Task) -> Outcome:
    """Run the task."""
    network = transformers.AutoModelForCausalLM.from_pretrained(
        task.model, dtype=_DTYPES[task.settings["dtype"]], attn_implementation="sdpa"
    )
    is_alone = task.settings["mode"] == "alone"
    return _run_alone(network, task) if is_alone else _run_continuous(network, task)


def _run_alone(network: Any, task: Task) -> Outcome:
    network.generation_config.eos_token_id = None
    _generate(network, _WARM_UP)
    started = time.perf_counter()
    answers: dict[str, list[int]] = {}
    latencies_s: list[float] = []
    for request in task.requests:
        answers[request.id] = _generate(network, request)
        latencies_s.append(time.perf_counter() - started)
    return Outcome(_version(), answers, latencies_s, latencies_s[-1])


def _generate(network: Any, request: TokenRequest) -> list[int]:
    generated = network.generate(
        torch.tensor([request.prompt_ids]),
        attention_mask=torch.ones(1, len(request.prompt_ids)),
        max_new_tokens=request.max_tokens,
        do_sample=False,
    )
    output_ids: list[int] = generated[0, len(request.prompt_ids) :].tolist()
    return output_ids


def _run_continuous(network: Any, task: Task) -> Outcome:
    """Its scheduler caps the batch itself, so all requests are handed in at once."""
    limits = transformers.ContinuousBatchingConfig(
        page_size=_PAGE_SIZE,
        num_blocks=_KV_TOKENS * max(1, task.in_flight // 32) // _PAGE_SIZE,
        max_batch_tokens=512,
        max_requests_per_batch=task.in_flight,
        allow_block_sharing=False,
    )
    network.generation_config.update(do_sample=False, eos_token_id=_NO_TOKEN)
    with network.continuous_batching_context_manager(continuous_batching_config=limits) as manager:
        _answer_all(manager, [_WARM_UP])
        return _answer_all(manager, task.requests)


def _answer_all(manager: Any, requests: list[TokenRequest]) -> Outcome:
    started = time.perf_counter()
    for request in requests:
        manager.add_request(
            request.prompt_ids, request_id=request.id, max_new_tokens=request.max_tokens
        )
    answers: dict[str, list[int]] = {}
    latencies_s: list[float] = []
    while len(answers) < len(requests):
        done = manager.get_result(timeout=600)
        if done is None or done.error is not None:
            raise RuntimeError(f"continuous batching ended early: {done and done.error}")
        answers[done.request_id] = done.generated_tokens
        latencies_s.append(time.perf_counter() - started)
    return Outcome(_version(), answers, latencies_s, latencies_s[-1])


def _version() -> str:
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


if __name__ == "__main__":
    run_task(sys.argv[1:], run)
