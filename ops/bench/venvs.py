"""Virtual environments of the engines we are measured against, under .cache/bench.

Owns how one is made. None of it is in the project's locks: a peer's packages never come near what
the project itself installs. An environment is complete when it lists what was asked for; one that
was cut off is made anew.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """What to install. Unwanted packages come as dependencies and break what is wanted."""

    name: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    takes_our_torch: bool = False


def ensure_environment(environment: Environment, folder: Path) -> Path:
    """Make an environment below `folder` if it is not there; return its Python."""
    target = folder / environment.name
    python = target / "bin" / "python"
    wanted = "\n".join((*environment.requirements, *environment.unwanted))
    complete = target / ".complete"
    if complete.exists() and complete.read_text(encoding="utf-8") == wanted:
        return python
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
    # The CPU build of torch where we run it ourselves, not gigabytes of CUDA beside it.
    torch = [f"torch=={version('torch')}"] if environment.takes_our_torch else []
    _pip(python, "install", *environment.requirements, *torch)
    if environment.unwanted:
        _pip(python, "uninstall", "--yes", *environment.unwanted)
    complete.write_text(wanted, encoding="utf-8")
    return python


def _pip(python: Path, command: str, *arguments: str) -> None:
    pip = [str(python), "-m", "pip", command, "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True, stdout=sys.stderr)
