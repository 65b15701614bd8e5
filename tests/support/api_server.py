"""A real API process for tests: gunicorn on a free loopback port, ended by signals as in service.

Owns the process. Knows nothing of jobs; the settings come from the test.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep

import httpx

_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 20.0
_POLL_S = 0.02
_SCRIPT = "from api.server import serve; from ops.settings import Settings; serve(Settings())"
_REPOSITORY = Path(__file__).resolve().parents[2]


class ApiServer:
    """One API process; `settings` are PROMPTMILL_* variables without their prefix."""

    def __init__(self, log: Path, settings: Mapping[str, str]) -> None:
        self._log = log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        named = {f"PROMPTMILL_{name.upper()}": value for name, value in settings.items()}
        self._environment = named | {"PROMPTMILL_API_PORT": str(self.port)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the process has printed."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and return when it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SCRIPT],
                cwd=_REPOSITORY,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until_s = monotonic() + _START_LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, f"the API ended:\n{self.log}"
            assert monotonic() < until_s, f"the API does not answer:\n{self.log}"
            sleep(_POLL_S)

    def terminate(self) -> None:
        """Ask the process to end, and return at once."""
        assert self._process is not None, "the API was never started"
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Return the exit status once the process has ended."""
        assert self._process is not None, "the API was never started"
        return self._process.wait(_STOP_LIMIT_S)

    def stop(self) -> None:
        """End the process at once, with its children if it does not end in time."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill9(self) -> None:
        """End the process and its children as a crash does."""
        assert self._process is not None, "the API was never started"
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/livez", timeout=1).status_code == 200
        except httpx.TransportError:
            return False
