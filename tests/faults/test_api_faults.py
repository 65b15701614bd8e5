"""The API in front of the queue: killed after the effect, told to end under load, flooded."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from engine.registry import Provenance, write_manifest
from queueing.failpoints import Failpoint
from queueing.job import Priority
from tests.support.api_server import ApiServer
from tests.support.cluster import Cluster
from tests.support.jobs import MODEL, QUEUE, finish
from tests.support.ledger import ALL_IS_WELL
from tests.support.load import amount
from tests.support.tiny_model import write_tiny_model

KEY = "pm_faults"


@pytest.fixture(scope="module")
def fake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder under the fake model's name: the API only counts its tokens."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / MODEL)
    write_manifest(folder, Provenance(name=MODEL))
    return folder


@pytest.fixture
def start_api(cluster: Cluster, fake_folder: Path) -> Iterator[Callable[..., ApiServer]]:
    """Return a way to start the API on the cluster's server; stopped after the test."""
    servers: list[ApiServer] = []

    def start(**settings: str) -> ApiServer:
        named = {
            "redis_url": cluster.server.url,
            "models": f'["{fake_folder}"]',
            "api_key": KEY,
            "data_dir": str(cluster.folder / "data"),
            **settings,
        }
        server = ApiServer(cluster.folder / f"api-{len(servers)}.log", named)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


def http(server: ApiServer) -> httpx.Client:
    """Return a client of the API that carries the key."""
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=10, trust_env=False)


def body(number: int, **changes: object) -> dict[str, object]:
    return {"prompt": f"prompt {number}", "max_tokens": 5, "ignore_eos": True, **changes}


@pytest.mark.fault("F12")
def test_an_api_killed_before_its_answer_leaves_one_job_for_the_repeat(cluster, start_api):
    doomed = start_api(failpoint=f"{Failpoint.ENQUEUED.value}:1")
    once = {"Idempotency-Key": "once"}
    with http(doomed) as client, pytest.raises(httpx.TransportError):
        client.post("/v1/jobs", json=body(1), headers=once)
    doomed.stop()

    with http(start_api()) as client:
        first = client.post("/v1/jobs", json=body(1), headers=once)
        second = client.post("/v1/jobs", json=body(1), headers=once)

    assert [first.status_code, second.status_code] == [202, 202]
    assert first.json()["id"] == second.json()["id"]
    assert cluster.queue.totals(QUEUE)["submitted"] == 1


@pytest.mark.fault("F13")
def test_an_api_told_to_end_under_load_drops_nobody(cluster, start_api):
    server = start_api(grace_s="5")
    cluster.start_worker()
    answers: Counter[int] = Counter()
    broken: list[Exception] = []

    def submit(number):
        """Submit until the API says that it ends; what breaks off is written down."""
        with http(server) as client:
            for job in range(amount(quick=60, soak=500)):
                try:
                    answer = client.post("/v1/jobs", json=body(number * 1_000 + job))
                except httpx.ConnectError:
                    return  # it listens no more
                except httpx.TransportError as error:
                    broken.append(error)
                    return
                answers[answer.status_code] += 1
                if answer.status_code == 503:
                    return  # it says that it ends
                if answer.status_code == 202:
                    prompt = f"prompt {number * 1_000 + job}"
                    cluster.ledger.note(answer.json()["id"], prompt, 5)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    cluster.wait_until(lambda: answers[202] > 40)
    server.terminate()
    for thread in threads:
        thread.join()

    assert server.wait() == 0
    assert set(answers) <= {202, 503}
    assert broken == []
    cluster.wait_until_settled()
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL


@pytest.mark.fault("F29")
def test_a_burst_beyond_capacity_is_refused_in_order_of_urgency(cluster, start_api, chance):
    server = start_api(max_queued_jobs="100")
    answers: dict[str, Counter[int]] = {priority.value: Counter() for priority in Priority}

    with http(server) as client:
        for number in range(amount(quick=400, soak=6_000)):
            # One in ten is urgent, so that all of them fit.
            priority = "realtime" if number % 20 == 0 else chance.choice(["standard", "bulk"])
            answer = client.post("/v1/jobs", json=body(number, priority=priority))
            answers[priority][answer.status_code] += 1
            assert answer.status_code == 202 or int(answer.headers["Retry-After"]) <= 120
            if cluster.queue.depth(QUEUE).ready[Priority.REALTIME] >= 2:
                for claim in cluster.queue.claim(QUEUE, "w1", 2):
                    finish(cluster.queue, claim)

    assert answers["realtime"][202] == answers["realtime"].total()
    assert set(answers["bulk"]) == {202, 429}
    assert set(answers["standard"]) == {202, 429}
    assert answers["standard"][202] > answers["bulk"][202]
