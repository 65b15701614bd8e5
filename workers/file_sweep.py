"""FileSweep: removes files whose lifetime is over, and what crashes left on the data disk.

Bytes that no record names are nobody's: a draft whose process died, a file placed before its record
could be made, a segment of a tick that was taken over. They go once they are an hour old, which is
far longer than anything is without a name while its process lives. Age is measured by the clock of
the disk itself, so no machine's wrong clock makes a file old. Safe to run anywhere, any often.
"""

import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from queueing.batch_output import SegmentFolder
from queueing.batch_store import BatchStore
from queueing.draft import Draft
from queueing.files import FileStore

_AT_ONCE = 256


class FileSweep:
    """Sweeps one data disk; every `every_s` seconds when it is asked more often."""

    def __init__(
        self,
        files: FileStore,
        batches: BatchStore,
        data_dir: Path,
        *,
        every_s: float = 600.0,
        min_age_s: float = 3_600.0,
    ) -> None:
        self._files = files
        self._batches = batches
        self._data_dir = data_dir
        self._every_s = every_s
        self._min_age_s = min_age_s
        self._due_s = time.monotonic()

    def sweep_when_due(self) -> None:
        """Sweep if the last time is long enough ago."""
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + self._every_s
            self.sweep()

    def sweep(self) -> int:
        """Sweep once; return how many files were removed."""
        num_removed = 0
        while num_expired := self._files.delete_expired(_AT_ONCE):
            num_removed += num_expired
        return num_removed + self._sweep_files() + self._sweep_segments()

    def _sweep_files(self) -> int:
        """Remove drafts that nobody writes any more and files that no record names."""
        num_removed = 0
        old = self._old_in(self._files.folder)
        while some := list(islice(old, _AT_ONCE)):
            known = self._files.known([path.name for path in some])
            for path in some:
                if path.name not in known:
                    path.unlink(missing_ok=True)
                    num_removed += 1
        return num_removed

    def _sweep_segments(self) -> int:
        """Remove segments that no progress names, all of them once their batch has ended."""
        num_removed = 0
        for folder in SegmentFolder.all_in(self._data_dir):
            old = list(self._old_in(folder))
            batch = self._batches.read(folder.name)
            if batch is None or batch.status.is_terminal:
                if len(old) == sum(1 for _ in folder.iterdir()):
                    shutil.rmtree(folder, ignore_errors=True)
                    num_removed += len(old)
                continue
            for path in old:
                if path.name not in batch.progress.segments:
                    path.unlink(missing_ok=True)
                    num_removed += 1
        return num_removed

    def _old_in(self, folder: Path) -> Iterator[Path]:
        if not folder.is_dir():
            return
        newest_s = self._disk_now_s(folder) - self._min_age_s
        for path in folder.iterdir():
            if path.is_file() and path.stat().st_mtime <= newest_s:
                yield path

    def _disk_now_s(self, folder: Path) -> float:
        probe = Draft(folder)
        try:
            return probe.path.stat().st_mtime
        finally:
            probe.discard()
