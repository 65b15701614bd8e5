"""Ceilings: how fast the machine reads memory and multiplies, and what that allows.

python -m ops.bench.ceilings TASK OUTCOME, with the setting `dtype`. A lone sequence has to read
every weight for each token; a large batch has to multiply every token with every weight. Attention,
norms, sampling and Python cost nothing here, reading and multiplying overlap fully.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.kernels.reference import ReferenceKernels
from engine.model.families import read_model_config
from ops.bench.limit import DTYPES, layer_shapes
from ops.bench.task import Task, run_task

_READ_BYTES = 1 << 30
_PRODUCT_ROWS = 512
_NUM_TIMINGS = 9


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes read and products computed per second; output tokens per second that they allow."""

    read_rate: float
    product_rate: float
    alone: float
    batched: float


@torch.inference_mode()
def measure(task: Task) -> Ceilings:
    """Measure the machine; divide by what the workload needs."""
    dtype = DTYPES[task.settings["dtype"]]
    model = read_model_config(Path(task.model))
    num_layer_weights = model.num_layers * sum(wide * high for wide, high in layer_shapes(model))
    num_head_weights = model.hidden_size * model.vocab_size
    num_outputs = sum(request.max_tokens for request in task.requests)
    num_tokens = num_outputs + sum(len(request.prompt_ids) for request in task.requests)

    read_rate = _read_rate()
    product_rate = _product_rate(dtype, max(layer_shapes(model)))
    read_bytes = (num_layer_weights + num_head_weights) * dtype.itemsize * num_outputs
    products = 2 * (num_layer_weights * num_tokens + num_head_weights * num_outputs)
    # Prompts are computed in one pass even alone, so their products come on top of the reading.
    prompt_products = 2 * num_layer_weights * (num_tokens - num_outputs)
    alone_s = read_bytes / read_rate + prompt_products / product_rate
    return Ceilings(
        read_rate=read_rate,
        product_rate=product_rate,
        alone=num_outputs / alone_s,
        batched=num_outputs * product_rate / products,
    )


def _read_rate() -> float:
    """Time a product of a matrix with a vector: two operations for each number that is read."""
    matrix = torch.ones(_READ_BYTES // (4 * 4096), 4096)
    vector = torch.ones(4096)
    return _READ_BYTES / _fastest_s(lambda: torch.mv(matrix, vector))


def _product_rate(dtype: torch.dtype, shape: tuple[int, int]) -> float:
    num_in, num_out = shape
    kernels = ReferenceKernels(dtype, is_packed=True)
    weight = kernels.pack(torch.randn(num_out, num_in).to(dtype), None, None)
    rows = torch.randn(_PRODUCT_ROWS, num_in).to(dtype)
    return 2 * num_in * num_out * _PRODUCT_ROWS / _fastest_s(lambda: kernels.linear(rows, weight))


def _fastest_s(work: Callable[[], object]) -> float:
    """Return the shortest time: nothing makes a machine faster than it is."""
    work()
    return min(_timed(work) for _ in range(_NUM_TIMINGS))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
