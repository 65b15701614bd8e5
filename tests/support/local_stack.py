"""`promptmill up` as a process for tests: the whole stack on a small model, as a person runs it.

Owns the process and all that it starts. Everything lies in one folder; ports are free ones.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from engine.registry import Provenance, write_manifest
from ops.connection import Connection
from tests.support.tiny_model import write_tiny_model
from tests.support.waiting import wait_until

_REPOSITORY = Path(__file__).resolve().parents[2]
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 30.0
_IS_UP = "Ctrl-C stops"


class LocalStackProcess:
    """One `promptmill up` after another on one data folder."""

    def __init__(self, folder: Path, *options: str, **settings: str) -> None:
        self.data_dir = folder / "data"
        self.output = folder / "up.log"
        self._options = options
        self._settings = {"data_dir": str(self.data_dir), "api_port": "0"} | settings
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make commands talk to this stack."""
        settings = {f"PROMPTMILL_{name.upper()}": value for name, value in self._settings.items()}
        return {"PATH": os.defpath, "HOME": str(self.data_dir.parent), **settings}

    @property
    def connection_file(self) -> Path:
        return self.data_dir / "connection.json"

    @property
    def connection(self) -> Connection:
        """Where the stack answers now."""
        return Connection.read(self.connection_file)

    def start(self) -> None:
        """Start the stack and return when it says that it is up."""
        self.begin()
        wait_until(lambda: _IS_UP in self.said or not self.is_running, _START_LIMIT_S)
        assert self.is_running, self.said

    def begin(self) -> None:
        """Start the stack and return at once."""
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "ops.cli", "up", *self._options],
                cwd=_REPOSITORY,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What the command has printed since its last start."""
        return self.output.read_text()

    @property
    def is_running(self) -> bool:
        return self._running.poll() is None

    def family(self) -> list[psutil.Process]:
        """Return the processes of the stack, the command's own first."""
        parent = psutil.Process(self._running.pid)
        return [parent, *parent.children(recursive=True)]

    def pid_of(self, name: str) -> int | None:
        """Return the process whose command line holds `name`; None when there is none just now."""
        for process in self.family():
            try:
                if name in process.cmdline():
                    return process.pid
            except psutil.NoSuchProcess:
                continue  # it ended while we looked
        return None

    def signal(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def wait(self) -> int:
        """Return the exit status once the command has ended."""
        return self._running.wait(_STOP_LIMIT_S)

    def stop(self) -> None:
        """End the stack the orderly way, if it runs; nothing of it may be left."""
        if self._process is None or not self.is_running:
            return
        family = self.family()
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.said
        assert [process for process in family if process.is_running()] == []
        assert not self.connection_file.exists()

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it was never started"
        return self._process


def write_named_model(folder: Path, name: str) -> Path:
    """Write a small random model that is registered under a name."""
    write_tiny_model(folder)
    write_manifest(folder, Provenance(name=name))
    return folder
