"""What every test may ask for: the demonstration model's folder, a real Redis-compatible server,
clusters of real workers.

PROMPTMILL_TEST_MODEL names another model folder, PROMPTMILL_TEST_REDIS_BINARY another server. With
CI=true the tests on a server run on both the embedded one and the distribution's, and its absence
is a failure. Kernels for a GPU run in Triton's interpreter, which has to be chosen before Triton is
first imported.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.cluster import Cluster
from tests.support.server import RedisServer, embedded_binary, system_binary

REPOSITORY = Path(__file__).resolve().parent.parent
DEMO_MODEL = REPOSITORY / ".cache" / "models" / "SmolLM2-135M-Instruct"

os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes of tests, also when the suite runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "redis_server" in metafunc.fixturenames:
        binaries = _server_binaries()
        metafunc.parametrize(
            "redis_server", binaries.values(), ids=binaries.keys(), indirect=True, scope="session"
        )


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """Return the converted demonstration model; `make model` makes it."""
    folder = Path(os.environ.get("PROMPTMILL_TEST_MODEL", DEMO_MODEL))
    assert (folder / "manifest.json").is_file(), f"no model in {folder}: run `make model`"
    return folder


@pytest.fixture(scope="session")
def redis_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """Run one server for the whole session; tests that kill it must leave it running."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), request.param)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Return the address of the session's server, emptied of what earlier tests left."""
    return _emptied(redis_server)


@pytest.fixture(scope="module")
def module_redis_url(redis_server: RedisServer) -> str:
    """Return the same for what a module's tests share: emptied before the first of them."""
    return _emptied(redis_server)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a way to start a cluster with other settings; it is gone after the test."""
    clusters: list[Cluster] = []

    def make(**settings: Any) -> Cluster:
        cluster = Cluster(tmp_path / f"cluster-{len(clusters)}", embedded_binary(), **settings)
        clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let one thread compute: for small tensors, two wait for each other most of the time."""
    import torch  # many tests do without

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def _server_binaries() -> dict[str, Path]:
    named = os.environ.get("PROMPTMILL_TEST_REDIS_BINARY")
    if named:
        return {Path(named).name: Path(named)}
    binaries = {"embedded": embedded_binary()}
    if os.environ.get("CI") == "true":
        system = system_binary()
        assert system is not None, "redis-server is not installed, and CI tests on it too"
        binaries["system"] = system
    return binaries


def _emptied(server: RedisServer) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        client.script_flush()
    return server.url
