"""The API in a real gunicorn process: what Flask's test client cannot show."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from time import monotonic

import httpx
import pytest

from queueing.queue import JobQueue
from tests.api.conftest import API_KEY
from tests.api.test_jobs import complete_one
from tests.support.api_server import ApiServer

MAX_BODY_BYTES = 65_536


@pytest.fixture
def server(redis_url, tiny_folder, tmp_path) -> Iterator[ApiServer]:
    server = ApiServer(
        tmp_path / "api.log",
        {
            "redis_url": redis_url,
            "models": f'["{tiny_folder}"]',
            "data_dir": str(tmp_path / "data"),
            "api_key": API_KEY,
            "api_threads": "6",
            "api_max_waiters": "3",
            "max_body_bytes": str(MAX_BODY_BYTES),
            "grace_s": "10",
        },
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def http(server: ApiServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=20) as http:
        yield http


def endless(piece: bytes = b"x" * 8192) -> Iterator[bytes]:
    yield b'{"prompt":"'
    yield from repeat(piece, 10_000)


def test_a_job_goes_through(http, queue):
    sent = http.post("/v1/jobs", json={"prompt": "hi"})
    complete_one(queue, "an answer")

    job = http.get(sent.headers["Location"]).json()

    assert sent.status_code == 202
    assert job["result"]["text"] == "an answer"


def test_a_chunked_body_without_end_is_cut_at_the_limit(http):
    headers = {"Content-Type": "application/json"}

    try:
        refused = http.post("/v1/jobs", content=endless(), headers=headers).status_code
    except httpx.TransportError:
        # The server closed the connection while the body was still being sent.
        refused = 413

    assert refused == 413
    assert http.post("/v1/jobs", json={"prompt": "next"}).status_code == 202


def test_a_chunked_body_within_the_limit_is_taken(http):
    headers = {"Content-Type": "application/json"}

    answer = http.post("/v1/jobs", content=iter([b'{"prompt":', b'"hi"}']), headers=headers)

    assert answer.status_code == 202


def test_a_declared_length_over_the_limit_is_refused_before_the_body(server):
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {API_KEY}\r\n"
        "Content-Type: application/json\r\nContent-Length: 300000000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.encode() + b"{")
        answer = connection.recv(4096)

    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_key_that_is_far_too_long_is_401(server):
    headers = {"Authorization": "Bearer " + "x" * 10_000}

    assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 401


def test_submits_are_served_while_all_waiters_wait(http):
    path = http.post("/v1/jobs", json={"prompt": "hi"}).headers["Location"]
    with ThreadPoolExecutor(6) as executor:
        asked = [executor.submit(http.get, f"{path}?wait=10") for _ in range(6)]
        begun_s = monotonic()

        sent = [http.post("/v1/jobs", json={"prompt": "hi"}) for _ in range(20)]

        assert {answer.status_code for answer in sent} == {202}
        assert monotonic() - begun_s < 5
        http.post(f"{path}/cancel")
        assert {answer.result().status_code for answer in asked} == {200}


def test_sigterm_answers_who_waits_refuses_new_work_and_ends(http, server):
    path = http.post("/v1/jobs", json={"prompt": "hi"}).headers["Location"]
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(httpx.get, f"{server.url}{path}?wait=20", headers=http.headers)
        while http.get("/metrics").text.find("requests_in_progress 2.0") < 0:
            assert not waiting.done()

        server.terminate()

        answer = waiting.result()
        refused = http.post("/v1/jobs", json={"prompt": "hi"})
        ready = http.get("/readyz")
    assert answer.json()["state"] == "queued"
    assert refused.json()["error"]["code"] == "draining"
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert server.wait() == 0


def test_logs_are_one_json_object_a_line_and_hold_no_prompt(http, server, queue: JobQueue):
    sent = http.post("/v1/jobs", json={"prompt": "CANARY-7f3a"}, headers={"x-request-id": "r-1"})
    http.post("/v1/jobs", json={"prompt": "CANARY-7f3a", "seed": "CANARY-7f3a"})
    http.post("/v1/jobs", content=b'{"prompt": "CANARY-7f3a"')
    complete_one(queue, "CANARY-7f3a")
    http.get(sent.headers["Location"])
    scraped = http.get("/metrics").text
    server.stop()

    lines = [httpx.Response(200, text=line).json() for line in server.log.splitlines()]

    accepted = next(line for line in lines if line["event"] == "job accepted")
    assert accepted["job_id"] == sent.json()["id"]
    assert accepted["request_id"] == "r-1"
    assert "CANARY" not in server.log + scraped
    assert 'promptmill_jobs_submitted_total{endpoint="jobs"' in scraped
