"""Clients that send a byte now and then, or nothing, or never read: nobody else notices."""

import socket
import threading
from itertools import repeat
from time import monotonic

import httpx
import pytest

from tests.api.conftest import API_KEY
from tests.support.api_server import ApiServer

# More of each kind than there are threads.
NUM_OF_A_KIND = 8
LIMIT_S = 3.0
AUTHORIZED = f"Host: x\r\nAuthorization: Bearer {API_KEY}\r\n".encode()
JSON_HEAD = b"POST /v1/jobs HTTP/1.1\r\n" + AUTHORIZED + b"Content-Type: application/json\r\n"
SLOW = {
    "says nothing": (b"", b""),
    "drips its head": (b"GET /v1/models HTTP/1.1\r\n", b"X-A: b\r\n"),
    "drips its body": (JSON_HEAD + b"Content-Length: 9000\r\n\r\n{", b" "),
    "drips its chunks": (JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "drips an upload": (
        b"POST /v1/files HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 90000\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n",
        b" ",
    ),
}


@pytest.fixture(scope="module")
def server(module_redis_url, tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    server = ApiServer(
        folder / "api.log",
        {
            "redis_url": module_redis_url,
            "models": f'["{tiny_folder}"]',
            "data_dir": str(folder / "data"),
            "api_key": API_KEY,
            "api_threads": "6",
            "api_max_waiters": "3",
            "max_body_bytes": "65536",
            "request_limit_s": str(LIMIT_S),
        },
    )
    server.start()
    yield server
    server.stop()


class SlowClient(threading.Thread):
    """Sends a beginning, then a piece now and then, until it is cut."""

    def __init__(self, port, beginning, piece):
        super().__init__(daemon=True)
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.settimeout(0.25)
        self._connection.sendall(beginning)
        self._piece = piece
        self._started_s = monotonic()
        self.cut_after_s = None
        self.answer = b""

    def run(self):
        for _ in repeat(None, 80):
            try:
                self._connection.sendall(self._piece)
                received = self._connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                received = b""
            self.answer += received
            if not received:
                break
        self.cut_after_s = monotonic() - self._started_s
        self._connection.close()


def test_slow_clients_of_every_kind_are_cut_in_time_and_move_nobody(server):
    slow = [
        SlowClient(server.port, beginning, piece)
        for beginning, piece in SLOW.values()
        for _ in range(NUM_OF_A_KIND)
    ]
    for client in slow:
        client.start()

    taken_s = []
    with httpx.Client(base_url=server.url, timeout=20) as http:
        for _ in range(40):
            began_s = monotonic()
            assert http.get("/livez").status_code == 200
            taken_s.append(monotonic() - began_s)
    for client in slow:
        client.join(LIMIT_S + 10)

    # Held up by one of them, a request would take as long as it may.
    assert max(taken_s) < LIMIT_S / 2
    assert max(client.cut_after_s or 99.0 for client in slow) < LIMIT_S + 5
    assert {client.answer.split(b"\r\n")[0] for client in slow} <= {
        b"",
        b"HTTP/1.1 408 Request Timeout",
        b"HTTP/1.1 400 BAD REQUEST",
    }


def test_a_client_that_sends_slowly_but_in_time_is_served(server):
    body = b'{"prompt":"hi"}'
    head = JSON_HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.settimeout(0.05)
        for byte in head + body:
            connection.sendall(bytes([byte]))
        connection.settimeout(20)
        answer = connection.recv(4096)

    assert answer.startswith(b"HTTP/1.1 202 ")


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(server):
    body = b'{"prompt":"hi"}'
    head = JSON_HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head)
        leave = connection.recv(4096)
        connection.sendall(body)
        answer = connection.recv(4096)

    assert leave == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.startswith(b"HTTP/1.1 202 ")
