"""How fast the engine is on a device, with and without graphs, and how near the device's limits.

python -m ops.bench.device_speed TASK OUTCOME, with the settings `device`, `speed_kernels`, `dtype`,
`in_flight` (several, with commas), `bytes_per_s` and `flop_per_s`. The workload runs at each number
in flight; then decode steps are timed at long contexts against the bytes they have to read, and a
long prompt against the products it needs. Peak memory is torch's, so it leaves out the device's own
context.
"""

import gc
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from engine.config import ComputeType, EngineConfig, KernelChoice
from engine.engine import Engine
from engine.loading import load_engine
from engine.model.config import ModelConfig
from engine.model.families import read_model_config
from engine.sequence import SamplingParams, Sequence
from ops.bench.closed_loop import Answer, run_closed_loop
from ops.bench.device_section import Section
from ops.bench.task import Task, TokenRequest, run_task

_BLOCK_SIZE = 32
_NUM_STEPS = 20


@dataclass(frozen=True, slots=True)
class Speed:
    """One engine's figures; shares are of what the device was measured to do."""

    in_flight: int
    has_graphs: bool
    kernels: str
    graphs_s: float
    output_rate: float
    decode_step_s: float
    bandwidth_share: float
    prompt_rate: float
    product_share: float
    peak_bytes: int


def measure(task: Task) -> Section:
    """Measure each number in flight with and without graphs; a CPU has none."""
    is_gpu = task.settings["device"] == "cuda"
    speeds = [
        _measure(task, in_flight, has_graphs=has_graphs)
        for in_flight in map(int, task.settings["in_flight"].split(","))
        for has_graphs in ((True, False) if is_gpu else (False,))
    ]
    head = [
        "in flight",
        "graphs (s to record)",
        "output tok/s",
        "decode step ms",
        "of bandwidth",
        "prompt tok/s",
        "of products",
        "peak MiB",
    ]
    numbers = {
        f"{speed.in_flight} in flight, graphs {speed.has_graphs}": asdict(speed) for speed in speeds
    }
    title = f"Speed, {task.settings['dtype']}, {speeds[0].kernels} kernels"
    return Section(title, head, [_cells(speed) for speed in speeds], numbers)


class _Client:
    """Our engine, stepped by the client all engines of the bench share."""

    version = "promptmill"

    def __init__(self, engine: Engine[torch.Tensor]) -> None:
        self._engine = engine

    def add(self, request: TokenRequest) -> None:
        """Let a request join; it makes exactly max_tokens, greedily."""
        sampling = SamplingParams(max_tokens=request.max_tokens, ignore_eos=True)
        self._engine.add(Sequence(request.id, request.prompt_ids, sampling))

    def step(self) -> list[Answer]:
        """Compute one step and collect what has ended."""
        return [
            Answer(done.sequence_id, list(done.token_ids)) for done in self._engine.step().finished
        ]


@dataclass(frozen=True, slots=True)
class _Work:
    """What a step reads, and a prompt's token multiplies: all layers, and the head for a step."""

    layer_bytes: float
    head_bytes: float
    token_bytes: float  # of the cache
    value_bytes: int

    def step_bytes(self, batch: int, context: int) -> float:
        """Count what a step of single tokens has to read."""
        return self.layer_bytes + self.head_bytes + batch * context * self.token_bytes

    @property
    def token_flop(self) -> float:
        """Count what a token of a prompt costs in products with weights; attention is left out."""
        return 2 * self.layer_bytes / self.value_bytes


def _measure(task: Task, in_flight: int, *, has_graphs: bool) -> Speed:
    """Load an engine, measure it and give its memory back."""
    settings = task.settings
    is_gpu = settings["device"] == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    model = read_model_config(Path(task.model))
    context = min(1024, model.max_context // 2)
    blocks_per_sequence = (context + 2 * _NUM_STEPS) // _BLOCK_SIZE + 1
    num_blocks = max(in_flight * blocks_per_sequence, model.max_context // _BLOCK_SIZE)
    config = EngineConfig(
        dtype=ComputeType(settings["dtype"]),
        device=settings["device"],
        kernels=KernelChoice(settings["speed_kernels"]),
        block_size=_BLOCK_SIZE,
        num_blocks=num_blocks,
        max_sequences=in_flight,
        max_step_tokens=2048 if is_gpu else 256,
        prefix_caching=False,
        graphs=has_graphs,
    )
    engine = load_engine(Path(task.model), config)
    work = _work(engine, model)
    requests = _repeated(task.requests, in_flight)
    outcome = run_closed_loop(_Client(engine), Task(task.model, requests, in_flight, {}))
    step_s = _decode_step_s(engine, in_flight, context)
    prompt_rate = _prompt_rate(engine, min(4096, model.max_context - 8))
    graphs = engine.facts.graphs
    speed = Speed(
        in_flight=in_flight,
        has_graphs=graphs is not None,
        kernels=engine.facts.kernels,
        graphs_s=0.0 if graphs is None else graphs.seconds,
        output_rate=outcome.output_rate,
        decode_step_s=step_s,
        bandwidth_share=work.step_bytes(in_flight, context)
        / step_s
        / float(settings["bytes_per_s"]),
        prompt_rate=prompt_rate,
        product_share=work.token_flop * prompt_rate / float(settings["flop_per_s"]),
        peak_bytes=torch.cuda.max_memory_allocated() if is_gpu else 0,
    )
    del engine
    gc.collect()
    return speed


def _work(engine: Engine[torch.Tensor], model: ModelConfig) -> _Work:
    """Take the sizes from the memory plan, which counts an embedding that is the head once."""
    memory = engine.facts.memory
    assert memory is not None, "load_engine plans memory"
    value_bytes = 4 if engine.facts.dtype == "float32" else 2
    head_bytes = model.vocab_size * model.hidden_size * value_bytes
    return _Work(
        layer_bytes=memory.weights_bytes - (1 if model.ties_embeddings else 2) * head_bytes,
        head_bytes=head_bytes,
        token_bytes=memory.cache_bytes / (memory.num_blocks * _BLOCK_SIZE),
        value_bytes=value_bytes,
    )


def _repeated(requests: list[TokenRequest], in_flight: int) -> list[TokenRequest]:
    """Return at least three times as many requests as are in flight at once, few for one."""
    requests = requests[: 24 * in_flight]
    times = -(-3 * in_flight // len(requests))
    return [
        TokenRequest(f"{request.id} {number}", request.prompt_ids, request.max_tokens)
        for number in range(times)
        for request in requests
    ]


def _decode_step_s(engine: Engine[torch.Tensor], batch: int, context: int) -> float:
    """Return the median seconds of a step of single tokens at about this context."""
    sampling = SamplingParams(max_tokens=2 * _NUM_STEPS, ignore_eos=True)
    names = [f"decoding {index}" for index in range(batch)]
    for name in names:
        engine.add(Sequence(name, [1] * context, sampling))
    while engine.step().num_decode_tokens < batch:
        pass
    durations = [engine.step().duration_s for _ in range(_NUM_STEPS)]
    for name in names:
        engine.abort(name)
    return median(durations)


def _prompt_rate(engine: Engine[torch.Tensor], num_tokens: int) -> float:
    """Return the tokens per second of one long prompt, once warm."""
    rates = []
    for name in ("warm-up", "measured"):
        engine.add(Sequence(name, [1] * num_tokens, SamplingParams(max_tokens=1, ignore_eos=True)))
        seconds = 0.0
        while engine.has_work:
            seconds += engine.step().duration_s
        rates.append(num_tokens / seconds)
    return rates[-1]


def _cells(speed: Speed) -> list[str]:
    return [
        str(speed.in_flight),
        f"{speed.graphs_s:.1f}" if speed.has_graphs else "none",
        f"{speed.output_rate:.0f}",
        f"{speed.decode_step_s * 1e3:.2f}",
        f"{speed.bandwidth_share:.0%}",
        f"{speed.prompt_rate:.0f}",
        f"{speed.product_share:.0%}",
        f"{speed.peak_bytes / 2**20:.0f}",
    ]


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
