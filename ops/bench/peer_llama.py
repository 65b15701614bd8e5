"""llama.cpp's server on a task, over HTTP; runs in an environment of its own, which builds it.

python -m ops.bench.peer_llama TASK OUTCOME, with settings `threads` and `folder`, where the server
is built.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

from ops.bench.llama_build import ensure_model, ensure_server
from ops.bench.task import Outcome, Task, TokenRequest, run_task

_KV_TOKENS = 32_768
_HOST = "127.0.0.1"
_START_S = 120


def run(task: Task) -> Outcome:
    """Build what is missing, start the server, run the task."""
    folder = Path(task.settings["folder"])
    server = ensure_server(folder)
    command = [
        *[str(server), "--model", str(ensure_model(folder, Path(task.model)))],
        *["--parallel", str(task.in_flight), "--threads", task.settings["threads"]],
        *["--ctx-size", str(_KV_TOKENS * max(1, task.in_flight // 32))],
    ]
    version = subprocess.run([server, "--version"], check=True, capture_output=True, text=True)
    with _served(command) as port:
        _complete(port, TokenRequest("warm-up", [1, 2, 3], 4))
        return _answer_all(port, task, version.stderr.splitlines()[0])


@contextmanager
def _served(command: list[str]) -> Iterator[int]:
    """Run the server; yield its port."""
    with socket.socket() as free:
        free.bind((_HOST, 0))
        port: int = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, "--host", _HOST, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_health(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


def _await_health(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < give_up:
        try:
            if _ask(port, "GET", "/health").status == HTTPStatus.OK:
                return
        except ConnectionError:
            pass  # it does not listen yet
        time.sleep(0.2)
    raise RuntimeError("llama-server did not come up")


def _answer_all(port: int, task: Task, version: str) -> Outcome:
    started = time.perf_counter()
    answers: dict[str, list[int]] = {}
    latencies_s: list[float] = []
    with ThreadPoolExecutor(task.in_flight) as clients:
        asked = {clients.submit(_complete, port, request): request for request in task.requests}
        for done in as_completed(asked):
            answers[asked[done].id] = done.result()
            latencies_s.append(time.perf_counter() - started)
    return Outcome(f"llama-server {version}", answers, latencies_s, latencies_s[-1])


def _complete(port: int, request: TokenRequest) -> list[int]:
    wanted = {
        "prompt": request.prompt_ids,
        "n_predict": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    response = _ask(port, "POST", "/completion", json.dumps(wanted))
    if response.status != HTTPStatus.OK:
        raise RuntimeError(f"llama-server answered {response.status}: {response.body[:500]!r}")
    token_ids: list[int] = json.loads(response.body)["tokens"]
    return token_ids


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes


def _ask(port: int, method: str, path: str, body: str | None = None) -> _Response:
    connection = HTTPConnection(_HOST, port)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return _Response(response.status, response.read())
    finally:
        connection.close()


if __name__ == "__main__":
    run_task(sys.argv[1:], run)
