"""`promptmill submit`, `status`, `cancel` and `batch run`: a stack's jobs from the command line.

Talks to the stack that runs here, as `promptmill up` wrote it down, or to the one that the settings
name.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ops.client import CHAT, Client
from ops.connection import Connection
from ops.settings import Settings
from ops.up import connection_file


@click.command()
@click.argument("prompt")
@click.option("--priority", type=click.Choice(["realtime", "standard", "bulk"]))
@click.option(
    "--deadline", type=float, help="Seconds from now after which the answer is worthless."
)
@click.option("--max-tokens", type=int)
@click.option("--model", help="Name of the model, when several are served.")
@click.option("--wait", type=float, default=0.0, help="Seconds to wait for the answer.")
def submit(prompt: str, wait: float, deadline: float | None, **fields: Any) -> None:
    """Submit a prompt as a chat message; print the job, or with --wait its answer."""
    client = _client()
    job = client.submit(
        messages=[{"role": "user", "content": prompt}], deadline_s=deadline, **fields
    )
    if wait:
        job = client.wait(job["id"], wait)
    _print_job(job)


@click.command()
@click.argument("job_id")
def status(job_id: str) -> None:
    """Print a job as it is now."""
    click.echo(json.dumps(_client().job(job_id), indent=2, ensure_ascii=False))


@click.command()
@click.argument("job_id")
def cancel(job_id: str) -> None:
    """Cancel a job, also while it runs."""
    job = _client().cancel(job_id)
    click.echo(f"{job['id']} {job['state']}")


@click.group()
def batch() -> None:
    """Run files of prompts."""


@batch.command("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where answers go.",
)
@click.option("--endpoint", default=CHAT, show_default=True, help="What its lines ask.")
def batch_run(file: Path, output: Path, endpoint: str) -> None:
    """Upload a JSONL file of requests for one endpoint, wait for it, and fetch its output.

    Lines that failed go to OUTPUT with `.errors` before its suffix.
    """
    if not output.parent.is_dir():
        raise click.BadParameter(f"there is no folder {output.parent}", param_hint="--output")
    client = _client()
    created = client.create_batch(client.upload(file), endpoint)
    last = _last_of(client.batch_progress(created["id"]))
    errors = output.with_name(f"{output.stem}.errors{output.suffix}")
    for file_id, path in ((last["output_file_id"], output), (last["error_file_id"], errors)):
        if file_id:
            path.write_bytes(client.content(file_id))
            click.echo(f"wrote {path}")
    counts = last["request_counts"]
    if last["status"] == "failed":
        for problem in last["errors"]["data"]:
            place = "" if problem["line"] is None else f"line {problem['line']}: "
            click.echo(f"{place}{problem['message']}", err=True)
        done = f"{counts['completed']} answered" if counts["completed"] else "nothing was run"
        raise click.ClickException(f"{last['id']} failed: {done}")
    click.echo(f"{last['status']}: {counts['completed']} answered, {counts['failed']} failed")


def _last_of(progress_made: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Show a batch's progress, on a terminal only; return how it ended."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    last: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        for last in progress_made:
            counts = last["request_counts"]
            done = counts["completed"] + counts["failed"]
            progress.update(bar, description=last["status"], total=counts["total"], completed=done)
    return last


def _print_job(job: dict[str, Any]) -> None:
    if job.get("result"):
        click.echo(job["result"]["text"])
    elif job.get("error"):
        click.echo(f"{job['id']} {job['state']}: {job['error']['message']}", err=True)
        sys.exit(1)
    else:
        click.echo(f"{job['id']} {job['state']}")


def _client() -> Client:
    """Return a client that is closed when the command ends."""
    client = Client(_connection(Settings()))
    click.get_current_context().call_on_close(client.close)
    return client


def _connection(settings: Settings) -> Connection:
    try:
        return Connection.read(connection_file(settings))
    except FileNotFoundError:
        pass
    key = settings.resolved_api_key()
    if key is None:
        raise click.ClickException(
            "nothing runs here: start `promptmill up`, or set PROMPTMILL_API_KEY"
        )
    return Connection(f"http://{settings.api_host}:{settings.api_port}", key)
