"""`promptmill webhooks`: receive webhooks on this machine, to see what they look like."""

from pathlib import Path

import click
import httpx

from ops.client import ApiError, Client
from ops.connection import Connection
from ops.settings import Settings
from ops.up import connection_file
from ops.webhook_listener import Heard, WebhookListener
from queueing.clock import SystemClock
from queueing.webhook_signature import WebhookSecret


@click.group()
def webhooks() -> None:
    """Receive webhooks on this machine."""


@webhooks.command()
@click.option("--port", type=int, default=8900, show_default=True, help="0 picks a free one.")
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with an endpoint's secret; else that of your jobs' own webhooks is used.",
)
def listen(port: int, secret_file: Path | None) -> None:
    """Verify and print what arrives, until Ctrl-C.

    A stack sends here only if PROMPTMILL_WEBHOOK_ALLOW_HTTP, PROMPTMILL_WEBHOOK_ALLOW_NETWORKS and
    PROMPTMILL_WEBHOOK_ALLOW_PORTS permit it.
    """
    text = secret_file.read_text().strip() if secret_file else _own_secret(Settings())
    try:
        secret = WebhookSecret.parse(text)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    listener = WebhookListener(port, [secret], SystemClock(), _print)
    click.echo(f"listening on {listener.url}")
    try:
        listener.serve()
    except KeyboardInterrupt:
        click.echo("stopped")


def _own_secret(settings: Settings) -> str:
    if settings.webhook_secret is not None:
        return settings.webhook_secret.get_secret_value()
    try:
        return Client(Connection.read(connection_file(settings))).webhook_secret()
    except FileNotFoundError:
        message = "no stack runs here: give --secret-file or set PROMPTMILL_WEBHOOK_SECRET"
        raise click.ClickException(message) from None
    except (ApiError, httpx.TransportError) as error:
        raise click.ClickException(f"the API does not tell the secret: {error}") from error


def _print(heard: Heard) -> None:
    told = heard.problem or f"{heard.event_type} {heard.object_id}"
    click.echo(f"{heard.webhook_id} {told}", err=heard.problem is not None)
