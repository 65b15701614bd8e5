"""What engines on differently rounded weights hold: `python -m ops.bench.weights_memory FOLDER`.

Each folder is loaded and run in a process of its own, with the same small cache. Its own memory is
what is no file's page cache, above what the interpreter and its libraries hold. The first folder is
what the others are compared with: what their files save, their processes should save too.
"""

import gc
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from engine.config import EngineConfig
from engine.folder import readable_files, weights_of
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence

_CONFIG = EngineConfig(num_blocks=16, max_sequences=4, max_step_tokens=64, num_threads=1)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one folder's weights: in its files, as planned, and of the process that ran them."""

    file_bytes: int
    planned_bytes: int
    process_bytes: int


def measure(folders: list[Path]) -> list[Held]:
    """Load and run one folder after another, each in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        return list(processes.map(held_here, folders))


def held_here(folder: Path) -> Held:
    """Load a folder in this process, answer one prompt, and see what it holds now."""
    before_bytes = _own_bytes()
    engine = load_engine(folder, _CONFIG)
    engine.add(Sequence("only", [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True)))
    while engine.has_work:
        engine.step()
    gc.collect()
    memory = engine.facts.memory
    assert memory is not None, "an engine that was loaded has a plan"
    return Held(
        file_bytes=sum(path.stat().st_size for path in weights_of(readable_files(folder))),
        planned_bytes=memory.weights_bytes,
        process_bytes=_own_bytes() - before_bytes,
    )


def _own_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    message = "the kernel does not tell"
    raise RuntimeError(message)


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(folders: tuple[Path, ...]) -> None:
    """Compare the memory of engines on model folders, in MiB."""
    click.echo(
        f"{'folder':40}  {'files':>6}  {'planned':>7}  {'process':>7}  saved: files, process"
    )
    results = measure(list(folders))
    for folder, held in zip(folders, results, strict=True):
        saved_in_files = results[0].file_bytes - held.file_bytes
        saved_in_process = results[0].process_bytes - held.process_bytes
        click.echo(
            f"{folder.name:40}  {held.file_bytes >> 20:6}  {held.planned_bytes >> 20:7}"
            f"  {held.process_bytes >> 20:7}  {saved_in_files >> 20:12}  {saved_in_process >> 20:7}"
        )


if __name__ == "__main__":
    main()
