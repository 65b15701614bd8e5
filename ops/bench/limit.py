"""The limit: what the workload would take if a step were nothing but its matrix products.

python -m ops.bench.limit TASK OUTCOME, with the setting `dtype`. The steps of a continuous batch
are simulated; the products of all layers are timed, as oneDNN computes them from weights packed
once, for a grid of row counts with linear interpolation between. Attention, norms, sampling and
Python cost nothing. An engine with better products than oneDNN's may go beyond it.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from engine.kernels.interface import Linear
from engine.kernels.reference import ReferenceKernels
from engine.model.config import ModelConfig
from engine.model.families import read_model_config
from ops.bench.concurrency import CONCURRENCIES, requests_for
from ops.bench.estimates import interpolate
from ops.bench.task import Task, TokenRequest, run_task

_STEP_TOKENS = 512
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ROW_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_NUM_TIMINGS = 5


@dataclass(frozen=True, slots=True)
class StepSize:
    """How many tokens a step computes, and for how many of them the vocabulary is scored."""

    num_tokens: int
    num_sampled: int


@dataclass(frozen=True, slots=True)
class LimitCurve:
    """Output tokens per second at each of CONCURRENCIES."""

    output_rates: list[float]


def simulate_steps(
    requests: list[TokenRequest], in_flight: int, max_step_tokens: int
) -> list[StepSize]:
    """Return the steps of a batch that is refilled at once: decoding first, then prompt chunks."""
    waiting = list(reversed(requests))
    running: list[_Progress] = []
    steps: list[StepSize] = []
    while waiting or running:
        while waiting and len(running) < in_flight:
            request = waiting.pop()
            running.append(_Progress(len(request.prompt_ids), request.max_tokens))
        steps.append(_advance(running, max_step_tokens))
        running = [progress for progress in running if progress.num_to_make > 0]
    return steps


def measure(task: Task) -> LimitCurve:
    """Time the products and simulate the workload at each concurrency."""
    products = _Products(_DTYPES[task.settings["dtype"]])
    model = read_model_config(Path(task.model))
    layers_s = products.timed(_layer_shapes(model) * model.num_layers)
    head_s = products.timed([(model.hidden_size, model.vocab_size)])
    rates = []
    for in_flight in CONCURRENCIES:
        requests = requests_for(task.requests, in_flight)
        steps = simulate_steps(requests, in_flight, _STEP_TOKENS)
        num_output_tokens = sum(request.max_tokens for request in requests)
        whole_s = sum(layers_s(step.num_tokens) + head_s(step.num_sampled) for step in steps)
        rates.append(num_output_tokens / whole_s)
    return LimitCurve(rates)


@dataclass(slots=True)
class _Progress:
    """What a request has before it: prompt tokens to compute, then tokens to make."""

    num_prompt: int
    num_to_make: int


def _advance(running: list[_Progress], max_step_tokens: int) -> StepSize:
    decoding = [progress for progress in running if progress.num_prompt == 0]
    num_tokens = num_sampled = len(decoding)
    for progress in decoding:
        progress.num_to_make -= 1
    for progress in running:
        chunk = min(progress.num_prompt, max_step_tokens - num_tokens)
        if chunk > 0:
            num_tokens += chunk
            progress.num_prompt -= chunk
            if progress.num_prompt == 0:  # its last row samples the first token
                num_sampled += 1
                progress.num_to_make -= 1
    return StepSize(num_tokens, num_sampled)


def _layer_shapes(model: ModelConfig) -> list[tuple[int, int]]:
    """Return inputs and outputs of a layer's weights, fused as ours are."""
    query = model.num_heads * model.head_dim
    key_and_value = 2 * model.num_kv_heads * model.head_dim
    return [
        (model.hidden_size, query + key_and_value),
        (query, model.hidden_size),
        (model.hidden_size, 2 * model.intermediate_size),
        (model.intermediate_size, model.hidden_size),
    ]


class _Products:
    """Times oneDNN's products of one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._kernels = ReferenceKernels(dtype, is_packed=True)

    def timed(self, shapes: list[tuple[int, int]]) -> Callable[[int], float]:
        """Time a product with each weight, at some row counts; return the seconds for any."""
        weights = [
            self._kernels.pack(torch.randn(num_out, num_in).to(self._dtype), None, None)
            for num_in, num_out in shapes
        ]
        seconds = [self._time(weights, num_rows) for num_rows in _ROW_COUNTS]
        return lambda num_rows: interpolate(_ROW_COUNTS, seconds, num_rows)

    @torch.inference_mode()
    def _time(self, weights: list[Linear], num_rows: int) -> float:
        inputs = {
            num_in: torch.randn(num_rows, num_in).to(self._dtype)
            for num_in in {weight.num_in for weight in weights}
        }
        timings = []
        for _ in range(_NUM_TIMINGS):
            started = time.perf_counter()
            for weight in weights:
                self._kernels.linear(inputs[weight.num_in], weight)
            timings.append(time.perf_counter() - started)
        return median(timings)


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
