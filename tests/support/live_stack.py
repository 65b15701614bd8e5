"""The whole system for client tests: an API process, a fake engine's worker and their server.

All processes are real, and only what the model says is made up. Owns them until `stop`.
"""

import json
from pathlib import Path

import openai

from engine.registry import Provenance, write_manifest
from tests.support.api_server import ApiServer
from tests.support.cluster import Cluster
from tests.support.fake_engine import CHAT_TEMPLATE
from tests.support.jobs import MODEL
from tests.support.server import embedded_binary
from tests.support.tiny_model import write_tiny_model

API_KEY = "pm_test-key"
CONTEXT = 4096


class LiveStack:
    """One installation on loopback; `settings` are those of the API."""

    def __init__(self, folder: Path, step_ms: float = 1.0, **settings: str | float) -> None:
        self.cluster = Cluster(folder, embedded_binary(), slots=64, step_tokens=2048)
        self._step_ms = step_ms
        named = {
            "redis_url": self.cluster.server.url,
            "api_key": API_KEY,
            "models": json.dumps([str(write_fake_model(folder / "fake"))]),
            "data_dir": str(folder / "data"),
        }
        named |= {name: str(value) for name, value in settings.items()}
        self.api = ApiServer(folder / "api.log", named)

    def start(self) -> None:
        """Start all processes and return when the API answers."""
        self.cluster.start_worker(step_ms=self._step_ms)
        self.api.start()

    def client(self, **options: object) -> openai.OpenAI:
        """Return the unmodified client, as a stranger would make it."""
        return openai.OpenAI(api_key=API_KEY, base_url=f"{self.api.url}/v1", **options)  # type: ignore[arg-type]  # any of the client's own

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
