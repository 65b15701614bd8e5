"""`promptmill quantize`: make a smaller copy of a model folder.

Owns the options and the copy's provenance. The copy appears under its name when it is complete.
What loads torch is imported in the command, as in ops/cli.py.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.errors import ModelFolderError
from engine.model.config import Quantisation, Scheme
from engine.registry import Manifest, Provenance, load_manifest, verify, write_manifest

if TYPE_CHECKING:
    from engine.quantize import Lessons

# Learning needs more of them than rounding.
_NUM_TEXTS = {Scheme.INT8: 32, Scheme.INT4: 128}


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="The folder to make."
)
@click.option(
    "--scheme",
    type=click.Choice([scheme.value for scheme in Scheme]),
    required=True,
    help="int8: weights and activations. int4: weights, in groups.",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "128"]),
    default="32",
    show_default=True,
    help="Inputs that share a scale, for int4.",
)
@click.option("--text-tokens", default=256, show_default=True, help="Tokens in each text.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Steps of learning, for int4; each takes seconds for a hundred million weights.",
)
def quantize(
    folder: Path,
    out: Path,
    scheme: str,
    group_size: str,
    text_tokens: int,
    steps: int,
) -> None:
    """Round the linear layers of the model in FOLDER; the copy is made in OUT.

    What rounding may change is judged by text that the model writes itself. With int4 the copy then
    learns to answer as the model does.
    """
    from engine.own_text import own_text
    from engine.quantize import Lessons

    if out.exists():
        raise click.ClickException(f"{out} exists already")
    is_int4 = scheme == Scheme.INT4
    quantisation = Quantisation(Scheme(scheme), int(group_size) if is_int4 else None)
    try:
        manifest = load_manifest(folder)
        verify(folder, manifest)
        num_texts = _NUM_TEXTS[quantisation.scheme]
        click.echo(f"{manifest.name} writes {num_texts} texts of {text_tokens} tokens ...")
        lessons = Lessons(own_text(folder, num_texts, text_tokens), steps)
        click.echo("Rounding layer by layer ...")
        made = _make(folder, out, quantisation, lessons, manifest)
    except ModelFolderError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out}: {made.name}, {made.quantisation}, {_mebibytes(made)} MiB")
    click.echo(f"was {_mebibytes(manifest)} MiB; compare: python -m ops.bench.perplexity")


def _make(
    folder: Path,
    out: Path,
    quantisation: Quantisation,
    lessons: "Lessons",
    manifest: Manifest,
) -> Manifest:
    from engine.quantize import quantise_folder

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=out.parent) as scratch:
        made = Path(scratch) / out.name
        quantise_folder(folder, made, quantisation, lessons)
        provenance = Provenance(
            name=f"{manifest.name}-{quantisation.scheme}",
            source=f"{manifest.name} {manifest.version}, from {manifest.source}",
            licence=manifest.licence,
            pooling=manifest.pooling,
        )
        quantised = write_manifest(made, provenance)
        made.rename(out)
    return quantised


def _mebibytes(manifest: Manifest) -> int:
    return sum(file.size_bytes for file in manifest.files) >> 20
