"""The `promptmill` command: run the parts, run them all, talk to them.

Composition root of the command line. Each process of an installation is one of its sub-commands, so
that compose, systemd and `promptmill up` run the same things. Imports of a part happen in its
command: the API's process never loads torch because a worker's would.
"""

import sys
from pathlib import Path

import click
from rich.console import Console

from ops.commands.admin import admin
from ops.commands.jobs import batch, cancel, status, submit
from ops.commands.keys import keys
from ops.commands.openapi import openapi
from ops.commands.quantize import quantize
from ops.commands.switch import switch
from ops.commands.webhooks import webhooks
from ops.one_line_errors import OneLineErrors
from ops.settings import Settings

_FOLDER = click.Path(path_type=Path)


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="promptmill", prog_name="promptmill")
def main() -> None:
    """Asynchronous LLM jobs on your own machines. Settings come from PROMPTMILL_* variables."""


for command in (submit, status, cancel, batch, admin, keys, openapi, quantize, switch, webhooks):
    main.add_command(command)


@main.command()
def api() -> None:
    """Serve the HTTP API."""
    from api.server import serve
    from engine.registry import load_manifest

    settings = Settings()
    # Said here in a line: the server's own process would say it in a traceback.
    if settings.resolved_api_key() is None:
        raise click.ClickException("set PROMPTMILL_API_KEY or PROMPTMILL_API_KEY_FILE")
    for folder in settings.models:
        load_manifest(folder)
    serve(settings)


@main.group()
def worker() -> None:
    """Run a worker."""


@worker.command()
@click.option("--model", type=_FOLDER, help="Model folder; else PROMPTMILL_MODELS.")
@click.option("--name", help="Name in Flower, metrics and logs.")
def engine(model: Path | None, name: str | None) -> None:
    """Serve one model folder."""
    from engine.registry import load_manifest

    settings = Settings()
    folders = [model] if model else settings.models
    if len(folders) != 1:
        raise click.UsageError("an engine worker serves one model: name it with --model")
    load_manifest(folders[0])  # before the seconds that loading the tensor library takes

    from workers.gpu import run_engine_worker

    sys.exit(run_engine_worker(settings, folders[0], name))


@worker.command()
@click.option("--name", help="Name in Flower, metrics and logs.")
def cpu(name: str | None) -> None:
    """Deliver webhooks, run batches and sweep."""
    from workers.app import run_cpu_worker

    sys.exit(run_cpu_worker(Settings(), name))


@main.command()
def beat() -> None:
    """Sweep every ten seconds, in case no CPU worker does."""
    from workers.beat import run_beat

    run_beat(Settings())


@main.command()
def flower() -> None:
    """Serve Flower with our queue lengths; user promptmill, password the API key."""
    from ops.flower.app import run_flower

    run_flower(Settings())


@main.command()
@click.option("--model", "models", multiple=True, type=_FOLDER, help="Model folder.")
@click.option("--flower/--no-flower", default=True, help="Run Flower too.")
def up(models: tuple[Path, ...], flower: bool) -> None:  # noqa: FBT001  a command's flag
    """Run the whole stack here until Ctrl-C; children that die are started again."""
    from ops.stack import with_models
    from ops.up import run_up

    run_up(with_models(Settings(), models), Console(), flower=flower)


@main.command()
def demo() -> None:
    """Show the whole system at work, then stop it."""
    from ops.demo import run_demo

    sys.exit(run_demo(Settings()))


@main.group()
def model() -> None:
    """Prepare model folders."""


@model.command("add")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--source", default="local", help="Where the weights come from.")
@click.option("--licence", default="unknown", help="Their licence.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "last"]),
    default="last",
    help="What it was trained to make embeddings of: all tokens' mean, or the last one.",
)
def model_add(folder: Path, source: str, licence: str, pooling: str) -> None:
    """Write the manifest of a model folder: the hashes and limits every load is checked by."""
    from engine.registry import Provenance, write_manifest
    from engine.sequence import Pooling

    provenance = Provenance(
        name=folder.resolve().name, source=source, licence=licence, pooling=Pooling(pooling)
    )
    manifest = write_manifest(folder, provenance)
    click.echo(f"{manifest.name}: {len(manifest.files)} files, context {manifest.context_length}")


if __name__ == "__main__":
    main()
