"""The lock of a data folder: one stack at a time, and none while an earlier one still stops.

The lock belongs to an open file, not to a process. Handed on to the children of a stack, it is free
only when the last of them has ended: a stack that was killed may leave its store writing for a
moment, and a second store on the same append-only file would ruin it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

_NAME = "up.lock"


class FolderInUseError(RuntimeError):
    """Another stack runs on the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"a stack runs on {folder} already, or is still stopping;"
            " stop it first, or set PROMPTMILL_DATA_DIR to another folder"
        )


@contextmanager
def folder_lock(folder: Path) -> Iterator[int]:
    """Hold a folder, made if need be; yield the lock's descriptor. Raises FolderInUseError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / _NAME).open("ab") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise FolderInUseError(folder) from error
        yield file.fileno()
