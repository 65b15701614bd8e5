"""`promptmill switch`: look at the degradation switches, and flip them without a restart."""

import getpass

import click
import structlog

from ops.logs import Event, configure_logging
from ops.settings import Settings
from queueing.errors import PromptmillError
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard

_OFF = "off"


@click.command()
@click.argument("name", type=click.Choice([switch.value for switch in Switch]), required=False)
@click.argument("value", required=False)
def switch(name: str | None, value: str | None) -> None:
    """Print the switches, or set one: `promptmill switch max_tokens 128`, `... shed_bulk off`."""
    settings = Settings()
    try:
        with connect(settings.redis_url) as client:
            board = SwitchBoard(client, prefix=settings.key_prefix)
            if name is not None and value is not None:
                flip_switch(board, Switch(name), _read_value(value))
            for known, setting in _described(board).items():
                click.echo(f"{known:<16}{setting}")
    except PromptmillError as error:
        raise click.ClickException(str(error)) from error


def flip_switch(board: SwitchBoard, wanted: Switch, value: int | None) -> None:
    """Flip a switch and leave a line about who did; raises StoreUnavailable."""
    configure_logging("cli", "INFO")
    flip = board.flip(wanted, value)
    structlog.stdlib.get_logger(__name__).info(
        Event.SWITCH_FLIPPED,
        switch=wanted.value,
        before=flip.before,
        now=flip.now,
        by=getpass.getuser(),
    )


def _read_value(value: str) -> int | None:
    if value in (_OFF, "0"):
        return None
    if value == "on":
        return 1
    if value.isascii() and value.isdigit():
        return int(value)
    raise click.BadParameter(f"{value!r} is neither on, off nor a whole number", param_hint="value")


def _described(board: SwitchBoard) -> dict[str, str]:
    on = board.read()
    return {known.value: str(on.get(known, _OFF)) for known in Switch}
