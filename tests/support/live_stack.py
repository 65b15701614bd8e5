"""The whole system for client tests: an API process, an engine's worker and their server.

All processes are real; without a model folder, what the model says is made up. Owns them until
`stop`.
"""

import json
import os
import sys
from pathlib import Path

import openai

from engine.registry import Provenance, write_manifest
from tests.support.api_server import ApiServer
from tests.support.cluster import Cluster, WorkerProcess
from tests.support.fake_engine import CHAT_TEMPLATE
from tests.support.jobs import MODEL
from tests.support.server import embedded_binary
from tests.support.tiny_model import write_tiny_model

API_KEY = "pm_test-key"
CONTEXT = 4096
_ENGINE = (
    "import sys; from pathlib import Path; from ops.settings import Settings;"
    "from workers.gpu import run_engine_worker;"
    "sys.exit(run_engine_worker(Settings(), Path(sys.argv[1])))"
)


class LiveStack:
    """One installation on loopback; `settings` are those of the API."""

    def __init__(
        self,
        folder: Path,
        step_ms: float = 1.0,
        model: Path | None = None,
        **settings: str | float,
    ) -> None:
        self.cluster = Cluster(folder, embedded_binary(), slots=64, step_tokens=2048)
        self._step_ms = step_ms
        self._model = model
        served = model or write_fake_model(folder / "fake")
        named = {
            "redis_url": self.cluster.server.url,
            "api_key": API_KEY,
            "models": json.dumps([str(served)]),
            "data_dir": str(folder / "data"),
        }
        named |= {name: str(value) for name, value in settings.items()}
        self._named = {f"PROMPTMILL_{name.upper()}": value for name, value in named.items()}
        self.api = ApiServer(folder / "api.log", named)

    def start(self) -> None:
        """Start all processes and return when the API answers."""
        if self._model is None:
            self.cluster.start_worker(step_ms=self._step_ms)
        else:
            self._start_engine(self._model)
        self.api.start()

    def client(self, **options: object) -> openai.OpenAI:
        """Return the unmodified client, as a stranger would make it."""
        return openai.OpenAI(api_key=API_KEY, base_url=f"{self.api.url}/v1", **options)  # type: ignore[arg-type]  # any of the client's own

    def start_cpu_worker(self) -> None:
        """Start what runs batches and webhooks."""
        command = [sys.executable, "-m", "ops.cli", "worker", "cpu", "--name", "cpu"]
        self._start_worker(command, "cpu.log", self._named)

    def _start_worker(self, command: list[str], log: str, settings: dict[str, str]) -> None:
        folder = self.cluster.folder
        environment = settings | {"HOME": str(folder), "PATH": os.defpath}
        self.cluster.workers.append(WorkerProcess(command, environment, folder / log))

    def _start_engine(self, model: Path) -> None:
        settings = {
            "PROMPTMILL_REDIS_URL": self.cluster.server.url,
            "PROMPTMILL_ENGINE_THREADS": "2",
            "PROMPTMILL_KV_BLOCKS": "512",
        }
        self._start_worker([sys.executable, "-c", _ENGINE, str(model)], "engine.log", settings)

    def stop(self) -> None:
        """End every process."""
        self.api.stop()
        self.cluster.stop()


def write_fake_model(folder: Path) -> Path:
    """Write a model folder from which an API reads what the fake engine's tokenizer does."""
    write_tiny_model(folder, max_position_embeddings=CONTEXT)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    write_manifest(folder, Provenance(name=MODEL))
    return folder
