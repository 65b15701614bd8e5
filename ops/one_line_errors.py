"""What a command says when it can't do what it was asked: one line and exit status 1.

The one place that turns the errors of the parts into words on a terminal. What is not listed here
is a fault of ours and keeps its traceback.
"""

from typing import Any

import click
import httpx
from pydantic import ValidationError
from pydantic_settings import SettingsError

from engine.errors import EngineError
from ops.client import ApiError
from ops.folder_lock import FolderInUseError
from ops.settings import Settings
from ops.stack import StackError
from queueing.errors import StoreUnavailable


class OneLineErrors(click.Group):
    """A group of commands whose expected errors are told in a line."""

    def invoke(self, ctx: click.Context) -> Any:  # whatever the command returns
        """Run the command; raises ClickException for what is expected to go wrong."""
        try:
            return super().invoke(ctx)
        except ValidationError as error:
            if error.title != Settings.__name__:
                raise
            raise click.ClickException(_bad_values(error)) from error
        except SettingsError as error:
            raise click.ClickException(_bad_json(error)) from error
        except ApiError as error:
            raise click.ClickException(f"{error} ({error.code})") from error
        except httpx.TransportError as error:
            raise click.ClickException(_no_answer(error)) from error
        except (EngineError, FolderInUseError, StackError, StoreUnavailable) as error:
            # A manifest that is none comes with a list of all that it lacks.
            raise click.ClickException(str(error).partition("\n")[0]) from error


def _bad_values(error: ValidationError) -> str:
    problems = (
        f"{_variable(problem['loc'])}{problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_url=False, include_input=False)
    )
    return "settings: " + "; ".join(problems)


def _variable(location: tuple[int | str, ...]) -> str:
    if not location:
        return ""  # it is about several settings, and names them
    name, *place = map(str, location)
    return f"PROMPTMILL_{'.'.join([name.upper(), *place])}: "


def _bad_json(error: SettingsError) -> str:
    # The library says which setting it could not read in words only.
    name = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
    return f'settings: PROMPTMILL_{name.upper()}: a JSON list is wanted, such as ["a", "b"]'


def _no_answer(error: httpx.TransportError) -> str:
    url = error.request.url.copy_with(path="/", query=None)
    return f"the API at {url} does not answer; is `promptmill up` running? ({error})"
