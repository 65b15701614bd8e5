"""An API on a real server with a tiny model, and a worker's side of its queue."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from api.app import Api, create_api
from engine.registry import Provenance, write_manifest
from ops.settings import Settings
from queueing.queue import JobQueue
from queueing.store import connect
from tests.support.tiny_model import write_tiny_model

API_KEY = "pm_test-key"
MODEL = "tiny"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    write_manifest(folder, Provenance(name=MODEL))
    return folder


@pytest.fixture
def settings(redis_url: str, tiny_folder: Path, tmp_path: Path) -> Settings:
    return Settings.model_validate(
        {
            "redis_url": redis_url,
            "models": [tiny_folder],
            "data_dir": tmp_path / "data",
            "api_key": API_KEY,
            "max_body_bytes": 65_536,
            "max_wait_s": 5.0,
            "api_max_waiters": 2,
        }
    )


@pytest.fixture
def api(settings: Settings) -> Iterator[Api]:
    api = create_api(settings)
    yield api
    api.close()


@pytest.fixture
def client(api: Api) -> FlaskClient:
    """Return a client that carries the key."""
    client = api.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {API_KEY}"
    return client


@pytest.fixture
def queue(redis_url: str) -> Iterator[JobQueue]:
    """Return the queue as a worker sees it."""
    connection = connect(redis_url)
    yield JobQueue(connection)
    connection.close()
