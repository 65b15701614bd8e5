"""What rounded weights cost and save: `python -m ops.bench.weights_speed FOLDER ...`.

The standard workload with 32 in flight, on one thread, by turns, each folder in each type of cache
that is asked for: processor time for each output token, which other load on the machine changes
little, and how many answers are whole those of the first folder in float32.
"""

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import click
import torch

from engine.config import CacheType, ComputeType, EngineConfig
from engine.engine import Engine
from engine.loading import load_engine
from engine.tokenizer import Tokenizer
from ops.bench.closed_loop import run_closed_loop
from ops.bench.equality import count_equal
from ops.bench.ours import OurEngine
from ops.bench.task import Task, TokenRequest
from ops.bench.workload import read_workload

_IN_FLIGHT = 32
_BLOCK_SIZE = 16
_NUM_BLOCKS = 1024  # every one is in use after the first round


@dataclass(frozen=True, slots=True)
class Kind:
    """One row: weights and the type of the cache they run with."""

    folder: Path
    kv_dtype: CacheType


@dataclass(frozen=True, slots=True)
class Speed:
    """Processor seconds for each output token, in the median round, and the answers."""

    token_s: float
    answers: dict[str, list[int]]


def measure(kinds: list[Kind], dtype: ComputeType, task: Task, num_rounds: int) -> list[Speed]:
    """Run the task on all engines by turns; a round before the first is not counted."""
    engines = [_load(kind, dtype) for kind in kinds]
    for engine in engines:
        run_closed_loop(OurEngine(engine), task)
    rounds = [[_run(engine, task) for engine in engines] for _ in range(num_rounds)]
    by_engine = zip(*rounds, strict=True)
    return [Speed(median(run.token_s for run in runs), runs[0].answers) for runs in by_engine]


def _load(kind: Kind, dtype: ComputeType) -> Engine[torch.Tensor]:
    config = EngineConfig(
        dtype=dtype,
        kv_dtype=kind.kv_dtype,
        block_size=_BLOCK_SIZE,
        num_blocks=_NUM_BLOCKS,
        max_sequences=_IN_FLIGHT,
        prefix_caching=False,
        num_threads=1,
    )
    return load_engine(kind.folder, config)


def _run(engine: Engine[torch.Tensor], task: Task) -> Speed:
    started = time.process_time()
    outcome = run_closed_loop(OurEngine(engine), task)
    num_tokens = sum(map(len, outcome.answers.values()))
    return Speed((time.process_time() - started) / num_tokens, outcome.answers)


def _task(folder: Path, num_requests: int) -> Task:
    tokenizer = Tokenizer.load(folder)
    requests = [
        TokenRequest(request.id, tokenizer.encode(request.prompt), request.max_tokens)
        for request in read_workload(num_requests)
    ]
    return Task(str(folder), requests, _IN_FLIGHT, {})


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--kv-dtype",
    "kv_dtypes",
    type=click.Choice([one.value for one in CacheType]),
    multiple=True,
    default=("auto",),
    help="Type of the cache; may be given twice.",
)
@click.option("--requests", default=96, show_default=True, help="Of the standard workload.")
@click.option("--rounds", default=3, show_default=True)
def main(folders: tuple[Path, ...], kv_dtypes: tuple[str, ...], requests: int, rounds: int) -> None:
    """Compare engines by processor time, and their answers with those in full precision."""
    task = _task(folders[0], requests)
    full = _run(_load(Kind(folders[0], CacheType.AUTO), ComputeType.FLOAT32), task)
    kinds = [Kind(folder, CacheType(kv)) for folder, kv in product(folders, kv_dtypes)]
    speeds = measure(kinds, ComputeType.BFLOAT16, task, rounds)
    click.echo(f"{'folder':40}  {'cache':>5}  ms a token  of the first  equal answers")
    for kind, speed in zip(kinds, speeds, strict=True):
        num_equal = count_equal(speed.answers, full.answers)
        click.echo(
            f"{kind.folder.name:40}  {kind.kv_dtype:>5}  {1000 * speed.token_s:10.3f}"
            f"  {speed.token_s / speeds[0].token_s:12.2f}  {num_equal} of {len(full.answers)}"
        )


if __name__ == "__main__":
    main()
