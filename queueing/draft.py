"""Draft: a file while it is being written. Owns temporary files; knows no Redis.

A draft is a temporary file until it is placed: then it has its name, whole and on disk, in one
step. Whatever ends the process before leaves a temporary file that nobody reads and that the sweep
removes. A full disk raises StorageFull and leaves nothing.
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from queueing.errors import FailureCode, RequestError, StorageFull
from queueing.job import new_id

DRAFT_SUFFIX = ".part"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Draft:
    """A temporary file in `folder` that takes at most `max_bytes`. One thread writes it."""

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        with translated_disk_errors():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path = folder / (new_id("draft_") + DRAFT_SUFFIX)
            self._stream = self._path.open("xb")

    @property
    def path(self) -> Path:
        """Where it is until it is placed."""
        return self._path

    @property
    def sha256(self) -> str:
        """The digest of what was written so far."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:
        """Append; raises StorageFull, and RequestError beyond the limit."""
        self.size_bytes += len(data)
        if self._max_bytes is not None and self.size_bytes > self._max_bytes:
            raise RequestError(
                FailureCode.FILE_TOO_LARGE,
                f"the file is larger than {self._max_bytes} bytes",
                "file",
            )
        with translated_disk_errors():
            self._stream.write(data)
        self._digest.update(data)
        return len(data)

    def read_back(self) -> BinaryIO:
        """Open what was written so far for reading."""
        with translated_disk_errors():
            self._stream.flush()
        return self._path.open("rb")

    def place(self, target: Path) -> None:
        """Give the file its name, once all of it is on disk."""
        with translated_disk_errors():
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._path.replace(target)
            sync_folder(target.parent)

    def discard(self) -> None:
        """Remove what was not placed; do nothing after place."""
        # A full disk refuses the buffered rest once more; the file goes anyway.
        with suppress(OSError):
            self._stream.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def translated_disk_errors() -> Iterator[None]:
    """Turn a full disk into StorageFull; any other failure of the disk stays what it is."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull("the disk is full") from error
        raise


def sync_folder(folder: Path) -> None:
    """Make a folder's names survive a machine crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
