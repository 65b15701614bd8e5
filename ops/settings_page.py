"""The reference of all settings: `python -m ops.settings_page > docs/settings.md`.

Owns the page's form; what it says of a setting stands in ops/settings.py.
"""

import json
from pathlib import Path
from typing import Any

import click
from pydantic.fields import FieldInfo

from ops.settings import Settings

_HEAD = """\
# Settings

Every process of an installation reads its settings from variables of the environment. An empty
variable is one that is not set; a wrong value ends the process at once, with a line that names it.
Lengths of time are in seconds where the name ends in `_S`, in milliseconds where it ends in `_MS`.

This page is made of `ops/settings.py` by `python -m ops.settings_page > docs/settings.md`.

| variable | default | |
| --- | --- | --- |
"""


def page() -> str:
    """Return the page: a row a setting, in the order of the code."""
    rows = (_row(name, field) for name, field in Settings.model_fields.items())
    return _HEAD + "".join(rows)


def _row(name: str, field: FieldInfo) -> str:
    description = (field.description or "").replace("|", "\\|")
    return f"| `PROMPTMILL_{name.upper()}` | {_default(field)} | {description}{_choices(field)} |\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    return f"`{_as_variable(value)}`"


def _as_variable(value: Any) -> str:  # whatever type a setting has
    if isinstance(value, Path):
        return str(value).replace(str(Path.home()), "~")
    if isinstance(value, list | bool):
        return json.dumps(value)
    return str(value)


def _choices(field: FieldInfo) -> str:
    """Name the values of a setting that takes one of a few."""
    choices = [choice for choice in getattr(field.annotation, "__args__", ()) if choice is not None]
    if not all(isinstance(choice, str) for choice in choices) or not choices:
        return ""
    return " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."


if __name__ == "__main__":
    click.echo(page(), nl=False)
