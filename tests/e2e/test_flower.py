"""A real Flower over real workers, asked through its REST API."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from ops.flower.app import USER
from ops.stack import free_port
from queueing.job import JobState, Priority
from tests.support.cluster import Cluster
from tests.support.jobs import QUEUE, TENANT, state_of
from tests.support.server import embedded_binary

pytestmark = pytest.mark.e2e

KEY = "pm-flower-test"
CANARY = "canary-4f1d"
_START_LIMIT_S = 30.0
_LIMIT_S = 20.0


class FlowerProcess:
    """`promptmill flower` on a cluster's server."""

    def __init__(self, cluster: Cluster, log: Path) -> None:
        port = free_port()
        environment = {
            "PATH": os.defpath,
            "HOME": str(log.parent),
            "PROMPTMILL_REDIS_URL": cluster.server.url,
            "PROMPTMILL_API_KEY": KEY,
            "PROMPTMILL_FLOWER_PORT": str(port),
        }
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", "flower"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._log = log
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", auth=(USER, KEY), trust_env=False
        )

    def wait_until_it_answers(self) -> None:
        self.wait_for(lambda: self.http.get("/healthcheck").is_success, _START_LIMIT_S)

    def tasks(self) -> dict[str, Any]:
        """Return Flower's rows by job id."""
        return dict(self.http.get("/api/tasks", params={"limit": 1000}).json())

    def lengths(self) -> dict[str, int]:
        """Return the queue lengths as Flower tells them."""
        rows = self.http.get("/api/queues/length").json()["active_queues"]
        return {row["name"]: row["messages"] for row in rows}

    def wait_for(self, condition: Any, limit_s: float = _LIMIT_S) -> None:
        until_s = monotonic() + limit_s
        while True:
            try:
                if condition():
                    return
            except httpx.TransportError:
                pass
            assert monotonic() < until_s, self._log.read_text(errors="replace")[-3_000:]
            sleep(0.05)

    def stop(self) -> int:
        self.http.close()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster", embedded_binary(), slots=4)
    yield cluster
    cluster.stop()


@pytest.fixture
def flower(cluster: Cluster, tmp_path: Path) -> Iterator[FlowerProcess]:
    flower = FlowerProcess(cluster, tmp_path / "flower.log")
    flower.wait_until_it_answers()
    yield flower
    flower.stop()


def submit(cluster: Cluster, prompt: str, max_tokens: int, **changes: Any) -> str:
    states = (JobState.COMPLETED, JobState.CANCELLED)
    return cluster.ledger.submit(cluster.queue, prompt, max_tokens, *states, **changes)


def test_flower_lists_jobs_as_they_were_and_never_their_prompts(
    cluster: Cluster, flower: FlowerProcess
) -> None:
    cluster.start_worker()
    cluster.wait_until(lambda: flower.http.get("/workers", params={"json": 1}).json()["data"])
    ids = [submit(cluster, f"{CANARY} {number}", 8) for number in range(12)]

    cluster.wait_until_settled()
    flower.wait_for(lambda: len(rows_of(flower, "SUCCESS")) == len(ids))

    assert set(rows_of(flower, "SUCCESS")) == set(ids)
    assert CANARY not in flower.http.get("/api/tasks").text
    assert CANARY not in flower.http.get("/tasks").text


def test_flower_revokes_a_running_job_and_its_slot_is_free_again(
    cluster: Cluster, flower: FlowerProcess
) -> None:
    cluster.start_worker(step_ms=30.0)
    running = submit(cluster, "a long one", 2_000)
    flower.wait_for(lambda: flower.tasks().get(running, {}).get("state") == "STARTED")

    flower.http.post(f"/api/task/revoke/{running}", params={"terminate": "true"})
    cluster.wait_until(lambda: state_of(cluster.queue, running) is JobState.CANCELLED)

    flower.wait_for(lambda: flower.tasks()[running]["state"] == "REVOKED")
    assert cluster.num_running() == 0
    later = submit(cluster, "after it", 4)
    cluster.wait_until(lambda: state_of(cluster.queue, later) is JobState.COMPLETED)


def test_flower_tells_queue_lengths_by_model_and_priority(
    cluster: Cluster, flower: FlowerProcess
) -> None:
    for number in range(5):
        submit(cluster, f"bulk {number}", 4, priority=Priority.BULK)
    for number in range(2):
        submit(cluster, f"urgent {number}", 4, priority=Priority.REALTIME)

    lengths = flower.lengths()

    assert lengths == {
        QUEUE: 7,
        f"{QUEUE}/realtime": 2,
        f"{QUEUE}/standard": 0,
        f"{QUEUE}/bulk": 5,
    }
    assert cluster.queue.get(next(iter(cluster.ledger.entries)), TENANT) is not None


def rows_of(flower: FlowerProcess, state: str) -> list[str]:
    return [job_id for job_id, row in flower.tasks().items() if row["state"] == state]
