"""Perplexity of model folders on a fixed text: `python -m ops.bench.perplexity FOLDER ...`.

Owns the text: ops/bench/sample.txt was written for this project, so no model has been trained on
it. It is read in windows of 512 tokens. Each folder is measured with each type of cache that is
asked for, and compared with the first folder in its first cache.
"""

from dataclasses import replace
from pathlib import Path

import click

from engine.config import CacheType, ComputeType, EngineConfig, KernelChoice
from engine.folder import readable_files, weights_of
from engine.perplexity import TextScorer
from engine.tokenizer import Tokenizer

_SAMPLE = Path(__file__).parent / "sample.txt"
_WINDOW_TOKENS = 512


def sample_windows(folder: Path) -> list[list[int]]:
    """Cut the sample, as the folder's tokenizer reads it; a rest of one token says nothing."""
    token_ids = Tokenizer.load(folder).encode(_SAMPLE.read_text(encoding="utf-8"))
    starts = range(0, len(token_ids) - 1, _WINDOW_TOKENS)
    return [token_ids[start : start + _WINDOW_TOKENS] for start in starts]


def measure(folder: Path, config: EngineConfig) -> float:
    """Return a folder's perplexity on the sample."""
    return TextScorer(folder, config, _WINDOW_TOKENS).perplexity(sample_windows(folder))


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--dtype", type=click.Choice([one.value for one in ComputeType]), default="auto")
@click.option(
    "--kv-dtype",
    "kv_dtypes",
    type=click.Choice([one.value for one in CacheType]),
    multiple=True,
    default=("auto",),
    help="Type of the cache; may be given twice.",
)
@click.option("--kernels", type=click.Choice([one.value for one in KernelChoice]), default="auto")
def main(folders: tuple[Path, ...], dtype: str, kv_dtypes: tuple[str, ...], kernels: str) -> None:
    """Compare the perplexity of model folders, and of types of the cache."""
    config = EngineConfig(dtype=ComputeType(dtype), kernels=KernelChoice(kernels))
    click.echo(f"{'folder':40}  {'MiB':>6}  {'cache':>5}  perplexity  change")
    first = None
    for folder in folders:
        size = sum(path.stat().st_size for path in weights_of(readable_files(folder))) >> 20
        for kv_dtype in kv_dtypes:
            perplexity = measure(folder, replace(config, kv_dtype=CacheType(kv_dtype)))
            first = first or perplexity
            change = 100 * (perplexity / first - 1)
            click.echo(
                f"{folder.name:40}  {size:6}  {kv_dtype:>5}  {perplexity:10.3f}  {change:+.2f}%"
            )


if __name__ == "__main__":
    main()
