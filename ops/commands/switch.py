"""`promptmill switch`: look at the degradation switches, and flip them without a restart."""

import getpass

import click
import structlog

from ops.commands.store import store_url
from ops.logs import Event, configure_logging
from ops.settings import Settings
from queueing.errors import PromptmillError
from queueing.model_routes import ModelRoutes
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard

_OFF = "off"
_USE_MODEL = "use_model"


@click.command()
@click.argument(
    "name",
    type=click.Choice([*(switch.value for switch in Switch), _USE_MODEL]),
    required=False,
)
@click.argument("value", required=False)
def switch(name: str | None, value: str | None) -> None:
    """Print the switches, or set one.

    `promptmill switch max_tokens 128`, `... shed_bulk off`, `... use_model large=small`,
    `... use_model large=off`.
    """
    settings = Settings()
    try:
        with connect(store_url(settings)) as client:
            board = SwitchBoard(client, prefix=settings.key_prefix)
            routes = ModelRoutes(client, prefix=settings.key_prefix)
            if name == _USE_MODEL and value is not None:
                _use_model(routes, value)
            elif name is not None and value is not None:
                flip_switch(board, Switch(name), _read_value(value))
            for line in (*_described(board), *_routes_described(routes)):
                click.echo(line)
    except PromptmillError as error:
        raise click.ClickException(str(error)) from error


def flip_switch(board: SwitchBoard, wanted: Switch, value: int | None) -> None:
    """Flip a switch and leave a line about who did; raises StoreUnavailable."""
    flip = board.flip(wanted, value)
    _leave_a_line(wanted.value, flip.before, flip.now)


def _use_model(routes: ModelRoutes, value: str) -> None:
    model, _, other = value.partition("=")
    if not model or not other or model == other:
        raise click.BadParameter(f"{value!r} is not MODEL=OTHER or MODEL=off", param_hint="value")
    change = routes.put(model, None if other == _OFF else other)
    _leave_a_line(f"{_USE_MODEL} {model}", change.before, change.now)


def _leave_a_line(what: str, before: int | str | None, now: int | str | None) -> None:
    configure_logging("cli", "INFO")
    structlog.stdlib.get_logger(__name__).info(
        Event.SWITCH_FLIPPED, switch=what, before=before, now=now, by=getpass.getuser()
    )


def _read_value(value: str) -> int | None:
    if value in (_OFF, "0"):
        return None
    if value == "on":
        return 1
    if value.isascii() and value.isdigit():
        return int(value)
    raise click.BadParameter(f"{value!r} is neither on, off nor a whole number", param_hint="value")


def _described(board: SwitchBoard) -> list[str]:
    on = board.read()
    return [f"{known:<16}{on.get(known, _OFF)!s:<8}{known.meaning}" for known in Switch]


def _routes_described(routes: ModelRoutes) -> list[str]:
    meaning = "jobs for the one model are given to the other"
    on = [f"{model}={other}" for model, other in sorted(routes.read().items())]
    return [f"{_USE_MODEL:<16}{route:<8}  {meaning}".rstrip() for route in on or [_OFF]]
