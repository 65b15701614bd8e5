"""Supervisor: keeps a set of child processes running and stops them all, whatever happens.

A child that dies is started again, at once the first time and then with a growing pause. Children
run in sessions of their own, so that Ctrl-C reaches the supervisor alone and it decides the order
of the end: the last started stops first.

One thread starts, watches and stops them all. It has to outlive every child: on Linux the kernel
ends a child when the thread that started it ends (ops/tether.py).
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

    def __init__(
        self,
        log_dir: Path,
        on_death: Callable[[str, int], None],
        shared_files: Sequence[int] = (),
    ) -> None:
        """Take where children's output goes, and who is told of a death (name, exit status).

        `on_death` is called by the supervisor's thread and must not raise. `shared_files` are
        descriptors that stay open in every child: a lock held by one is free when all have ended.
        """
        self._log_dir = log_dir
        self._on_death = on_death
        self._shared_files = shared_files
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def __enter__(self) -> "Supervisor":
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, child: Child) -> None:
        """Start a child and keep it running. Raises OSError when it can't be started at all."""
        kept = _Kept(child, self.log(child.name), self._shared_files)
        with self._lock:
            self._kept[child.name] = kept
        kept.tried.wait()
        if kept.failure is not None:
            raise kept.failure

    def pid(self, name: str) -> int:
        """Return the process id of a child now."""
        with self._lock:
            process = self._kept[name].process
        assert process is not None, f"{name} is being started"
        return process.pid

    def deaths(self, name: str) -> list[int]:
        """Return the exit statuses of a child's deaths, the first one first."""
        with self._lock:
            return list(self._kept[name].deaths)

    def log(self, name: str) -> Path:
        """Return the file a child writes to."""
        return self._log_dir / f"{name}.log"

    def stop(self) -> None:
        """Stop all children, the last started first; kill one that outlives its grace.

        Interrupted by an exception, Ctrl-C for one, it kills those that are left.
        """
        self._stopping.set()
        try:
            self._ended.wait()  # not join: interrupted, it takes the thread for ended
        finally:
            self._hurry.set()
            self._ended.wait()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            with self._lock:
                all_kept = list(self._kept.values())
            for kept in all_kept:
                status = kept.look()
                if status is not None:
                    self._on_death(kept.child.name, status)
        for kept in reversed(self._kept.values()):
            kept.stop(self._hurry)
        self._ended.set()


class RestartPause:
    """How long a child that died has to wait: not at all at first, longer each time it dies
    young.
    """

    def __init__(self) -> None:
        self._next_s = 0.0

    def after(self, lived_s: float) -> float:
        """Return the pause after a life of `lived_s` seconds."""
        pause_s = 0.0 if lived_s > _LONG_LIFE_S else self._next_s
        self._next_s = min(_MAX_PAUSE_S, pause_s * 2 + 1.0)
        return pause_s


class _Kept:
    """A child, its current process, and when it may be started again."""

    def __init__(self, child: Child, log: Path, shared_files: Sequence[int]) -> None:
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths: list[int] = []
        self.tried = threading.Event()
        self.failure: OSError | None = None
        self._log = log
        self._shared_files = shared_files
        self._pause = RestartPause()
        self._began = 0.0
        self._start_at = 0.0

    def look(self) -> int | None:
        """Start the process when it is due; return the status of one that has just died."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._start_at:
                self._try_to_start(now)
            return None
        status = self.process.poll()
        if status is None:
            return None
        self.process = None
        self.deaths.append(status)
        self._start_at = now + self._pause.after(now - self._began)
        return status

    def stop(self, hurry: threading.Event) -> None:
        """End the process the orderly way, by force after its grace or once there is a hurry."""
        if self.process is None:
            return
        self.process.terminate()
        until = time.monotonic() + self.child.grace_s
        while self.process.poll() is None:
            if hurry.is_set() or time.monotonic() >= until:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            else:
                hurry.wait(_LOOK_EVERY_S / 2)

    def _try_to_start(self, now: float) -> None:
        try:
            self.process = self._spawn()
        except OSError as error:
            self.failure = error
            self._start_at = now + self._pause.after(0.0)
        else:
            self._began = now
        self.tried.set()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ops.tether", str(os.getpid()), *self.child.command],
                env={**os.environ, **self.child.environment},  # noqa: TID251  a child inherits it
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self._shared_files,
            )
