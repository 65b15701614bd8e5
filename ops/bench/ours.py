"""Our engine on the standard workload, in a process of its own; prints one Measurement as JSON.

python -m ops.bench.ours --model FOLDER --in-flight 32 --dtype bfloat16
"""

import cProfile
import json
import pstats
import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from engine.config import ComputeType, EngineConfig
from engine.engine import Engine
from engine.loading import load_engine
from engine.plan import Completion
from engine.sequence import SamplingParams, Sequence
from engine.tokenizer import Tokenizer
from ops.bench.workload import Measurement, percentile, read_workload

# Where a step's time goes: the methods whose time, callees included, is counted under each name.
_PARTS = {
    "linears": ("engine/model/linear.py", {"__call__"}),
    "attention": ("engine/kernels/", {"attend"}),
    "small kernels": (
        "engine/kernels/",
        {"rms_norm", "add_rms_norm", "rotate_and_store", "silu_mul"},
    ),
    "head and sampling": ("engine/sampler.py", {"sample"}),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What came of running all sequences."""

    completions: dict[str, Completion]
    latencies_s: list[float]
    makespan_s: float


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--in-flight", default=32, show_default=True)
@click.option("--dtype", type=click.Choice([kind.value for kind in ComputeType]), default="auto")
@click.option("--limit", type=int, help="Only the first requests.")
@click.option("--profile/--no-profile", default=False, help="Measure where a step's time goes.")
def main(model: Path, in_flight: int, dtype: str, limit: int | None, *, profile: bool) -> None:
    """Run the workload once."""
    tokenizer = Tokenizer.load(model)
    config = EngineConfig(dtype=ComputeType(dtype), max_sequences=in_flight, num_blocks=2048)
    engine = load_engine(model, config)
    requests = read_workload(limit)
    sequences = [
        Sequence(
            request.id,
            tokenizer.encode(request.prompt),
            SamplingParams(max_tokens=request.max_tokens, ignore_eos=True),
        )
        for request in requests
    ]
    warm_up(engine)
    profiler = cProfile.Profile() if profile else None
    with profiler or nullcontext():
        run = run_all(engine, sequences, time.perf_counter)
    measurement = Measurement(
        name=f"promptmill, {dtype}, {in_flight} in flight",
        num_requests=len(requests),
        num_output_tokens=sum(len(done.token_ids) for done in run.completions.values()),
        makespan_s=run.makespan_s,
        latency_p50_s=percentile(run.latencies_s, 50),
        latency_p99_s=percentile(run.latencies_s, 99),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        answers={name: list(done.token_ids) for name, done in run.completions.items()},
        step_shares=_shares(profiler) if profiler else {},
    )
    click.echo(json.dumps(asdict(measurement)))


def warm_up(engine: Engine[torch.Tensor]) -> None:
    """Run one short sequence, so that the first step measured is like all others."""
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    run_all(engine, [Sequence("warm-up", [1, 2, 3], sampling)], time.perf_counter)


def run_all(
    engine: Engine[torch.Tensor], sequences: list[Sequence], timer: Callable[[], float]
) -> Run:
    """Add all sequences at once and step until none is left."""
    started = timer()
    for sequence in sequences:
        engine.add(sequence)
    completions: dict[str, Completion] = {}
    latencies_s: list[float] = []
    while engine.has_work:
        for completion in engine.step().finished:
            completions[completion.sequence_id] = completion
            latencies_s.append(timer() - started)
    return Run(completions, latencies_s, timer() - started)


def _shares(profiler: cProfile.Profile) -> dict[str, float]:
    """Split the time of all steps; what no part claims is Python and scheduling.

    The head's product runs inside sampling and is counted there, not as a linear layer.
    """
    stats = pstats.Stats(profiler)
    whole_s = stats.total_tt  # type: ignore[attr-defined] # typeshed leaves it out
    spent_s = dict.fromkeys(_PARTS, 0.0)
    for (file, _, function), row in stats.stats.items():  # type: ignore[attr-defined] # the same
        for part, (path, functions) in _PARTS.items():
            if path in file and function in functions:
                spent_s[part] += row[3]
                for (caller_file, _, caller), (_, _, _, cumulative_s) in row[4].items():
                    if part == "linears" and caller == "logits" and "decoder" in caller_file:
                        spent_s[part] -= cumulative_s
    shares = {part: seconds / whole_s for part, seconds in spent_s.items()}
    return shares | {"python and scheduling": 1.0 - sum(shares.values())}


if __name__ == "__main__":
    main()
