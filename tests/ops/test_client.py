"""The command line's client against a server that answers what it is told to."""

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ops.client import ApiError, Client
from ops.connection import Connection

RUNNING = {"id": "job_1", "state": "running", "finished_at": None}
COMPLETED = {"id": "job_1", "state": "completed", "finished_at": 1}


class Answers(ThreadingHTTPServer):
    """Gives the answers that were put in, in order, and keeps the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self.requests: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def put(self, status: int, body) -> None:
        self.answers.put((status, body if isinstance(body, bytes) else json.dumps(body).encode()))


class Handler(BaseHTTPRequestHandler):
    server: Answers

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((f"{self.command} {self.path}", body))
        status, answer = self.server.answers.get(timeout=5)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = answer  # noqa: N815  the library's names

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server():
    server = Answers()
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def client(server):
    client = Client(Connection(f"http://127.0.0.1:{server.server_port}", "pm-key"))
    yield client
    client.close()


def test_what_was_not_given_is_not_sent(client, server):
    server.put(202, RUNNING)

    client.submit(prompt="Hello", max_tokens=None, deadline_s=2.0)

    assert json.loads(server.requests[0][1]) == {"prompt": "Hello", "deadline_s": 2.0}


def test_an_error_keeps_the_servers_words(client, server):
    server.put(400, {"error": {"code": "invalid_request", "message": "max_tokens: too large"}})

    with pytest.raises(ApiError, match="max_tokens: too large") as refusal:
        client.submit(prompt="Hello")

    assert (refusal.value.status, refusal.value.code) == (400, "invalid_request")


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"[]", b'{"error": "text"}'])
def test_an_error_of_somebody_in_between_is_told_by_its_status(client, server, body):
    server.put(502, body)

    with pytest.raises(ApiError, match="502 Bad Gateway"):
        client.job("job_1")


def test_waiting_ends_with_the_job(client, server):
    server.put(200, RUNNING)
    server.put(200, COMPLETED)

    assert client.wait("job_1", limit_s=30.0) == COMPLETED

    assert [request for request, _ in server.requests] == ["GET /v1/jobs/job_1?wait=20.0"] * 2


def test_waiting_gives_the_job_as_it_is_when_the_time_is_over(client, server):
    server.put(200, RUNNING)

    assert client.wait("job_1", limit_s=0.0) == RUNNING


def test_a_batch_is_followed_until_it_has_ended(client, server):
    for status in ("validating", "in_progress", "completed"):
        server.put(200, {"status": status})

    seen = [batch["status"] for batch in client.batch_progress("batch_1", every_s=0.01)]

    assert seen == ["validating", "in_progress", "completed"]
