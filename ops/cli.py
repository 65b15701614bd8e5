"""The `promptmill` command: run the parts, run them all, talk to them.

Composition root of the command line. Each process of an installation is one of its sub-commands, so
that compose, systemd and `promptmill up` run the same things. Imports of a part happen in its
command: the API's process never loads torch because a worker's would.
"""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import httpx
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ops.client import ApiError, Client
from ops.keys_cli import keys
from ops.openapi_cli import openapi
from ops.settings import Settings
from ops.stack import Connection, LocalStack, StackError
from ops.supervisor import Supervisor
from ops.webhooks_cli import webhooks

_out = click.echo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="promptmill")
def main() -> None:
    """Asynchronous LLM jobs on your own machines. Settings come from PROMPTMILL_* variables."""


main.add_command(keys)
main.add_command(openapi)
main.add_command(webhooks)


@main.command()
def api() -> None:
    """Serve the HTTP API."""
    from api.server import serve

    serve(_settings())


@main.group()
def worker() -> None:
    """Run a worker."""


@worker.command()
@click.option(
    "--model", type=click.Path(path_type=Path), help="Model folder; else PROMPTMILL_MODELS."
)
@click.option("--name", help="Name in Flower, metrics and logs.")
def engine(model: Path | None, name: str | None) -> None:
    """Serve one model folder."""
    from workers.gpu import run_engine_worker

    settings = _settings()
    folders = [model] if model else settings.models
    if len(folders) != 1:
        raise click.UsageError("an engine worker serves one model: name it with --model")
    sys.exit(run_engine_worker(settings, folders[0], name))


@worker.command()
@click.option("--name", help="Name in Flower, metrics and logs.")
def cpu(name: str | None) -> None:
    """Deliver webhooks, run batches and sweep."""
    from workers.app import run_cpu_worker

    sys.exit(run_cpu_worker(_settings(), name))


@main.command()
def beat() -> None:
    """Sweep every ten seconds, in case no CPU worker does."""
    from workers.beat import run_beat

    run_beat(_settings())


@main.command()
def flower() -> None:
    """Serve Flower with our queue lengths; user promptmill, password the API key."""
    from ops.flower.app import run_flower

    run_flower(_settings())


@main.command()
@click.option(
    "--model", "models", multiple=True, type=click.Path(path_type=Path), help="Model folder."
)
@click.option("--flower/--no-flower", default=True, help="Run Flower too.")
def up(models: tuple[Path, ...], flower: bool) -> None:  # noqa: FBT001  a command's flag
    """Run the whole stack here until Ctrl-C; children that die are started again."""
    settings = _with_models(_settings(), models)
    console = Console()
    folder = settings.data_dir
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def note_death(name: str, status: int) -> None:
        console.print(f"[yellow]{name} ended with status {status}; starting it again[/]")

    with Supervisor(folder / "logs", note_death) as supervisor:
        stack = LocalStack(settings, supervisor, flower=flower)
        try:
            _bring_up(stack, settings, folder)
        except StackError as error:
            raise click.ClickException(str(error)) from error
        connection = stack.connection
        connection.write(_connection_file(settings))
        console.print(f"API     {connection.url}   key {connection.api_key}")
        if connection.flower_url:
            console.print(f"Flower  {connection.flower_url}   user promptmill, password the key")
        for name, url in stack.metrics_urls.items():
            console.print(f"metrics {url}   {name}")
        console.print(f"logs    {folder / 'logs'}")
        console.print(
            'try     promptmill submit "What is a prompt mill?" --wait 60      (Ctrl-C stops)'
        )
        stop.wait()
        console.print("stopping: running jobs finish, the rest stays queued")
    _connection_file(settings).unlink(missing_ok=True)


@main.command()
def demo() -> None:
    """Show the whole system at work, then stop it."""
    from ops.demo import run_demo

    sys.exit(run_demo(_settings()))


@main.command()
@click.argument("prompt")
@click.option("--priority", type=click.Choice(["realtime", "standard", "bulk"]))
@click.option(
    "--deadline", type=float, help="Seconds from now after which the answer is worthless."
)
@click.option("--max-tokens", type=int)
@click.option("--model", help="Name of the model, when several are served.")
@click.option("--wait", type=float, default=0.0, help="Seconds to wait for the answer.")
def submit(wait: float, deadline: float | None, **fields: Any) -> None:
    """Submit a prompt as a chat message; print the job, or with --wait its answer."""
    client = _client()
    prompt = fields.pop("prompt")
    with _api_errors():
        job = client.submit(
            messages=[{"role": "user", "content": prompt}], deadline_s=deadline, **fields
        )
        if wait:
            job = client.wait(job["id"], wait)
    _print_job(job)


@main.command()
@click.argument("job_id")
def status(job_id: str) -> None:
    """Print a job as it is now."""
    client = _client()
    with _api_errors():
        _out(json.dumps(client.job(job_id), indent=2, ensure_ascii=False))


@main.command()
@click.argument("job_id")
def cancel(job_id: str) -> None:
    """Cancel a job, also while it runs."""
    client = _client()
    with _api_errors():
        _print_job(client.cancel(job_id))


@main.group()
def batch() -> None:
    """Run files of prompts."""


@batch.command("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Where answers go."
)
def batch_run(file: Path, output: Path) -> None:
    """Upload a JSONL file of chat completion requests, wait for it, and fetch its output.

    Lines that failed go to OUTPUT with `.errors` before its suffix.
    """
    client = _client()
    with _api_errors():
        created = client.create_batch(client.upload(file))
        last = _follow(client, created["id"])
        if last["status"] == "failed":
            for problem in last["errors"]["data"]:
                _out(f"line {problem['line']}: {problem['message']}", err=True)
            raise click.ClickException(f"{created['id']} failed: nothing was run")
        errors = output.with_name(f"{output.stem}.errors{output.suffix}")
        for file_id, path in ((last["output_file_id"], output), (last["error_file_id"], errors)):
            if file_id:
                path.write_bytes(client.content(file_id))
                _out(f"wrote {path}")
    counts = last["request_counts"]
    _out(f"{last['status']}: {counts['completed']} answered, {counts['failed']} failed")


@main.group()
def model() -> None:
    """Prepare model folders."""


@model.command("add")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--source", default="local", help="Where the weights come from.")
@click.option("--licence", default="unknown", help="Their licence.")
def model_add(folder: Path, source: str, licence: str) -> None:
    """Write the manifest of a model folder: the hashes and limits every load is checked by."""
    from engine.errors import EngineError
    from engine.registry import Provenance, write_manifest

    try:
        manifest = write_manifest(
            folder, Provenance(name=folder.resolve().name, source=source, licence=licence)
        )
    except EngineError as error:
        raise click.ClickException(str(error)) from error
    _out(f"{manifest.name}: {len(manifest.files)} files, context {manifest.context_length}")


def _bring_up(stack: LocalStack, settings: Settings, folder: Path) -> None:
    if "redis_url" not in settings.model_fields_set:
        stack.start_store(folder / "store")
    stack.start_api()
    stack.start_workers()
    stack.start_flower()


def _follow(client: Client, batch_id: str) -> dict[str, Any]:
    """Show a batch's progress on a terminal; return how it ended."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    last: dict[str, Any] = {}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(batch_id, total=None)
        for last in client.batch_progress(batch_id):
            counts = last["request_counts"]
            done = counts["completed"] + counts["failed"]
            progress.update(bar, description=last["status"], total=counts["total"], completed=done)
    return last


def _print_job(job: dict[str, Any]) -> None:
    if job.get("result"):
        _out(job["result"]["text"])
    elif job.get("error"):
        _out(f"{job['id']} {job['state']}: {job['error']['message']}", err=True)
        sys.exit(1)
    else:
        _out(f"{job['id']} {job['state']}")


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        problems = "\n".join(
            f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
        )
        raise click.ClickException(f"settings:\n{problems}") from error


def _with_models(settings: Settings, models: tuple[Path, ...]) -> Settings:
    from ops.demo_model import DEFAULT_FOLDER

    folders = list(models) or settings.models or [DEFAULT_FOLDER]
    for folder in folders:
        if not (folder / "manifest.json").exists():
            raise click.ClickException(
                f"{folder} has no manifest: run `promptmill model add {folder}`"
            )
    return settings.model_copy(update={"models": [folder.resolve() for folder in folders]})


def _connection_file(settings: Settings) -> Path:
    return settings.data_dir / "connection.json"


def _client() -> Client:
    settings = _settings()
    try:
        return Client(Connection.read(_connection_file(settings)))
    except FileNotFoundError:
        pass
    key = settings.resolved_api_key()
    if key is None:
        raise click.ClickException(
            "nothing runs here: start `promptmill up`, or set PROMPTMILL_API_KEY"
        )
    return Client(Connection(f"http://{settings.api_host}:{settings.api_port}", key, None))


@contextmanager
def _api_errors() -> Iterator[None]:
    """Turn what the API and the network say into one line and exit status 1."""
    try:
        yield
    except ApiError as error:
        raise click.ClickException(f"{error} ({error.code})") from error
    except httpx.TransportError as error:
        raise click.ClickException(f"the API does not answer: {error}") from error


if __name__ == "__main__":
    main()
