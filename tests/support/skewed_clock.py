"""Clocks that are wrong: skewed_clock.c in front of a process, its offset moved while it runs.

Only the wall clock is shifted; monotonic time goes on as it is, as on a machine whose clock was set
wrong. The store is never put behind one.
"""

import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_OFFSET_BYTES = 8


def build_skew_library(folder: Path) -> Path | None:
    """Compile the library into a folder; None where there is no compiler or not this Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/proc/self/maps").exists():
        return None
    library = folder / "skewed_clock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(_SOURCE)], check=True
    )
    return library


class SkewedClock:
    """The clock of one process; `set` moves it at once, also while the process runs."""

    def __init__(self, folder: Path, name: str, library: Path) -> None:
        self._file = folder / f"clock-{name}"
        self._file.write_bytes(bytes(_OFFSET_BYTES))
        self._library = library

    @property
    def environment(self) -> dict[str, str]:
        """The variables that put a process behind this clock."""
        return {"LD_PRELOAD": str(self._library), "SKEWED_CLOCK_FILE": str(self._file)}

    def set(self, offset_s: int) -> None:
        """Let the clock be wrong by so many seconds."""
        with self._file.open("r+b") as file:
            file.write(offset_s.to_bytes(_OFFSET_BYTES, "little", signed=True))
