"""What strangers write cannot make a line of the log, nor colour one."""

import json
import socket

import pytest

from tests.api.conftest import API_KEY
from tests.support.api_server import ApiServer

FORGED = '{"event": "forged"}'
HEAD = f"Host: x\r\nAuthorization: Bearer {API_KEY}\r\nConnection: close\r\n"


@pytest.fixture(scope="module")
def server(module_redis_url, tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    settings = {
        "redis_url": module_redis_url,
        "models": f'["{tiny_folder}"]',
        "data_dir": str(folder / "data"),
        "api_key": API_KEY,
        "log_level": "DEBUG",
    }
    server = ApiServer(folder / "api.log", settings)
    server.start()
    yield server
    server.stop()


def post(body, **headers):
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    content = json.dumps(body).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"POST /v1/jobs HTTP/1.1\r\n{HEAD}{kind}{lines}\r\n".encode() + content


HOSTILE = {
    "a path": f"GET /v1/jobs/%0a{FORGED.replace(' ', '%20')} HTTP/1.1\r\n{HEAD}\r\n".encode(),
    "a query": f"GET /v1/jobs?a=%0d%0a%1b[31m HTTP/1.1\r\n{HEAD}\r\n".encode(),
    "a method": f"\x1b[31mX /v1/jobs HTTP/1.1\r\n{HEAD}\r\n".encode(),
    "a request id": post({"prompt": "x"}, x_request_id=f"a\x1b[31m{FORGED}"),
    "a folded header": post({"prompt": "x"}, user_agent=f"a\r\n {FORGED}"),
    "an idempotency key": post({"prompt": "x"}, idempotency_key=f"a\x0b{FORGED}"),
    "a model": post({"prompt": "x", "model": f"a\r\n{FORGED}\x1b[31m"}),
    "a field": post({"prompt": "x", f"a\n{FORGED}": 1}),
    "metadata": post({"prompt": "x", "metadata": {f"a\r\n{FORGED}": f"\x1b[31m\r\n{FORGED}"}}),
    "no request": f"\n{FORGED}\r\n\r\n".encode(),
}


@pytest.mark.parametrize("request_bytes", HOSTILE.values(), ids=HOSTILE)
def test_every_line_is_one_object_of_our_own(server, request_bytes):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request_bytes)
        while connection.recv(4_096):
            pass

    lines = server.log.splitlines()

    assert [line for line in lines if not line.startswith("{")] == []
    assert "forged" not in [json.loads(line)["event"] for line in lines]
    assert [line for line in lines if not line.isprintable()] == []


def test_metadata_comes_back_as_it_was_and_in_no_header(server):
    value = f"a\r\nX-Injected: 1\r\n\r\n{FORGED}"
    answers = []
    for request_bytes in (
        post({"prompt": "x", "metadata": {"k": value}}),
        post({"prompt": "x", "metadata": {value[:60]: "v"}}),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(request_bytes)
            answers.append(b"".join(iter(lambda: connection.recv(4_096), b"")))

    heads = [answer.partition(b"\r\n\r\n")[0] for answer in answers]
    assert [head.split(b"\r\n")[0] for head in heads] == [b"HTTP/1.1 202 ACCEPTED"] * 2
    assert [head for head in heads if b"X-Injected" in head] == []
