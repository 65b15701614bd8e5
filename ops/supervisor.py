"""Supervisor: keeps a set of child processes running and stops them all, whatever happens.

A child that dies is started again, at once the first time and then with a growing pause. Children
run in sessions of their own, so that Ctrl-C reaches the supervisor alone and it decides the order
of the end: the last started stops first.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_EVERY_S = 0.1
_LONG_LIFE_S = 30.0
_MAX_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Child:
    """One process to keep, and how long its orderly end may take."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    grace_s: float = 10.0


class Supervisor:
    """Owns the child processes. Use as a context manager: leaving it stops them."""

    def __init__(self, log_dir: Path, on_death: Callable[[str, int], None]) -> None:
        """Take where children's output goes, and who is told of a death (name, exit status)."""
        self._log_dir = log_dir
        self._on_death = on_death
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> "Supervisor":
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, child: Child) -> None:
        """Start a child and keep it running."""
        kept = _Kept(child, self._log_dir / f"{child.name}.log")
        with self._lock:
            self._kept[child.name] = kept
        # The watching thread starts the process: it lives as long as the supervisor does.
        kept.started.wait()

    def pid(self, name: str) -> int:
        """Return the process id of a child now."""
        with self._lock:
            process = self._kept[name].process
        assert process is not None, f"{name} is being started"
        return process.pid

    def log(self, name: str) -> Path:
        """Return the file a child writes to."""
        return self._log_dir / f"{name}.log"

    def stop(self) -> None:
        """Stop all children, the last started first; kill one that outlives its grace."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join()
        for kept in reversed(self._kept.values()):
            kept.stop()

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            with self._lock:
                all_kept = list(self._kept.values())
            for kept in all_kept:
                status = kept.look()
                if status is not None:
                    self._on_death(kept.child.name, status)


class _Kept:
    """A child, its current process, and when it may be started again."""

    def __init__(self, child: Child, log: Path) -> None:
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.started = threading.Event()
        self._log = log
        self._began = 0.0
        self._pause_s = 0.0
        self._start_at = 0.0

    def look(self) -> int | None:
        """Start the process when it is due; return the status of one that has just died."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._start_at:
                self._spawn()
            return None
        status = self.process.poll()
        if status is None:
            return None
        lived_long = now - self._began > _LONG_LIFE_S
        self._pause_s = 0.0 if lived_long else min(_MAX_PAUSE_S, self._pause_s * 2 + 0.5)
        self._start_at = now + (self._pause_s if self._pause_s > 0.5 else 0.0)
        self.process = None
        return status

    def stop(self) -> None:
        """End the process the orderly way, then by force."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.child.grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _spawn(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ops.tether", *self.child.command],
                env={**os.environ, **self.child.environment},  # noqa: TID251  a child inherits it
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._began = time.monotonic()
        self.started.set()
