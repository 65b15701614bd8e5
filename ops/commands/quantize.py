"""`promptmill quantize`: make a smaller copy of a model folder.

Owns the options and the copy's provenance. The copy appears under its name when it is complete.
What loads torch is imported in the command, as in ops/cli.py.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.errors import ModelFolderError, RiseTargetError
from engine.model.config import Quantisation, Scheme
from engine.registry import Manifest, Provenance, load_manifest, verify, write_manifest

if TYPE_CHECKING:
    from engine.quantize import Lessons

_SCHEMES = {
    "int8": Quantisation(Scheme.INT8, None),
    "int4-32": Quantisation(Scheme.INT4, 32),
    "int4-128": Quantisation(Scheme.INT4, 128),
}
# At least: layers are judged by text that rounding has not seen, and learning reads each text once.
_NUM_TEXTS = {Scheme.INT8: 32, Scheme.INT4: 64}
_NUM_JUDGES = 16  # further texts, which only measure what came of it


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="The folder to make."
)
@click.option(
    "--scheme",
    type=click.Choice(list(_SCHEMES)),
    required=True,
    help="int8: weights and activations. int4: weights, in groups of inputs that share a scale.",
)
@click.option("--text-tokens", default=256, show_default=True, help="Tokens in each text.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=36,
    show_default=True,
    help="Steps of learning, for int4; each takes seconds for a hundred million weights.",
)
@click.option(
    "--max-rise",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Rise of perplexity that int4 may cost; what costs more stays int8. 0: nothing does.",
)
def quantize(
    folder: Path,
    out: Path,
    scheme: str,
    text_tokens: int,
    steps: int,
    max_rise: float,
) -> None:
    """Round the linear layers of the model in FOLDER; the copy is made in OUT.

    What rounding may change is judged by text that the model writes itself. With int4 the layers
    that would cost most are kept in int8, as many as --max-rise asks for, and the copy then learns
    to answer as the model does.
    """
    from engine.distance import measure_rise
    from engine.learning import TEXTS_PER_STEP
    from engine.own_text import own_text
    from engine.quantize import Lessons, read_quantisable

    if out.exists():
        raise click.ClickException(f"{out} exists already")
    quantisation = _SCHEMES[scheme]
    is_int4 = quantisation.scheme is Scheme.INT4
    try:
        manifest = load_manifest(folder)
        verify(folder, manifest)
        read_quantisable(folder)  # before minutes of writing
        num_read = steps * TEXTS_PER_STEP if is_int4 else 0
        num_lessons = max(_NUM_TEXTS[quantisation.scheme], num_read)
        num_texts = num_lessons + _NUM_JUDGES
        click.echo(f"{manifest.name} writes {num_texts} texts of {text_tokens} tokens ...")
        texts = own_text(folder, num_texts, text_tokens)
        lessons = Lessons(texts[:num_lessons], steps, max_rise / 100 if max_rise else None)
        click.echo("Rounding layer by layer ...")
        made = _make(folder, out, quantisation, lessons, manifest)
        rise = 100 * measure_rise(folder, out, texts[num_lessons:])
    except (ModelFolderError, RiseTargetError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out}: {made.name}, {made.quantisation}, {_mebibytes(made)} MiB")
    click.echo(f"was {_mebibytes(manifest)} MiB; compare: python -m ops.bench.perplexity")
    click.echo(f"Perplexity of text that {manifest.name} wrote rises by {rise:.1f}%.")
    if is_int4 and 0 < max_rise < rise:
        click.echo(f"That is more than {max_rise:g}%: ask for less of a rise, or for more steps.")


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
