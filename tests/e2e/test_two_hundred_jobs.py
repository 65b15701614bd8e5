"""Two hundred jobs on the real model through HTTP, while a worker and the store are killed."""

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from engine.tokenizer import Tokenizer
from ops.stack import free_port
from queueing.job import JobState, generate_queue
from queueing.queue import JobQueue
from queueing.store import connect
from tests.support.api_server import ApiServer
from tests.support.audit import faults_in, live_jobs
from tests.support.cluster import WorkerProcess
from tests.support.server import RedisServer, embedded_binary

pytestmark = [pytest.mark.e2e, pytest.mark.real_model, pytest.mark.timeout(500)]

KEY = "pm_two-hundred"
NUM_JOBS = 200
NUM_CLIENTS = 4
ORACLE = json.loads((Path(__file__).parents[1] / "engine" / "oracle.json").read_text())
# Far from a tie, so that the order in which a batch adds up cannot turn an answer.
MARGIN = 0.2


@dataclass(frozen=True, slots=True)
class Asked:
    """A job as a client sends it, and what has to come of it."""

    body: dict[str, Any]
    text: str
    state: JobState


@pytest.fixture
def asked(model_folder: Path, request: pytest.FixtureRequest) -> list[Asked]:
    """Return jobs of mixed priority, deadline and length, with the texts transformers made."""
    chance = random.Random(request.config.getoption("randomly_seed"))
    tokenizer = Tokenizer.load(model_folder)
    clear = [answer for answer in ORACLE["answers"] if min(answer["margins"]) > MARGIN]
    return [an_ask(chance.choice(clear), chance, tokenizer) for _ in range(NUM_JOBS)]


def an_ask(answer: dict[str, Any], chance: random.Random, tokenizer: Tokenizer) -> Asked:
    max_tokens = chance.randint(2, ORACLE["max_tokens"])
    is_late = chance.random() < 0.1
    prompt = (
        {"messages": [{"role": "user", "content": answer["prompt"]}]}
        if answer["is_chat"]
        else {"prompt": answer["prompt"]}
    )
    body = {
        **prompt,
        "max_tokens": max_tokens,
        "priority": chance.choice(["realtime", "standard", "bulk"]),
        "deadline_s": 0.001 if is_late else chance.choice([None, 600]),
    }
    text = tokenizer.decode(answer["output_ids"][:max_tokens])
    return Asked(body, text, JobState.EXPIRED if is_late else JobState.COMPLETED)


class Stack:
    """Store, API and one engine worker on the real model, each in a process of its own."""

    def __init__(self, folder: Path, model_folder: Path) -> None:
        self.server = RedisServer(folder / "redis", embedded_binary())
        self.server.start()
        self.metrics_port = free_port()
        settings = {
            "redis_url": self.server.url,
            "models": json.dumps([str(model_folder)]),
            "api_key": KEY,
            "data_dir": str(folder / "data"),
            "lease_s": "4",
            "renew_s": "1",
            "dtype": "float32",
            "slots": "16",
            "engine_threads": "2",
            "metrics_port": str(self.metrics_port),
        }
        self._environment = {
            **{f"PROMPTMILL_{name.upper()}": value for name, value in settings.items()},
            "PATH": os.defpath,
            "HOME": str(folder),
        }
        self._log = folder / "worker.log"
        self.api = ApiServer(folder / "api.log", settings)
        self.api.start()
        self.worker = self._start_worker()
        self.client = connect(self.server.url)
        self.queue = JobQueue(self.client)

    def replace_worker(self) -> None:
        """Kill the worker and start another one, as its supervisor does."""
        self.worker.kill9()
        self.worker = self._start_worker()

    def stop(self) -> None:
        self.worker.kill9()
        self.api.stop()
        self.client.close()
        self.server.stop()

    def _start_worker(self) -> WorkerProcess:
        command = [sys.executable, "-m", "ops.cli", "worker", "engine"]
        return WorkerProcess(command, self._environment, self._log)


@pytest.fixture
def stack(tmp_path: Path, model_folder: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path, model_folder)
    yield stack
    stack.stop()


class Client(threading.Thread):
    """Submits its part, and asks again with the same key until it is told an id."""

    def __init__(self, url: str, name: str, jobs: list[Asked]) -> None:
        super().__init__(name=name, daemon=True)
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=10, trust_env=False
        )
        self._jobs = jobs
        self.accepted: dict[str, Asked] = {}

    def run(self) -> None:
        for number, job in enumerate(self._jobs):
            self.accepted[self._submit(f"{self.name}-{number}", job)] = job
            sleep(0.02)
        self._http.close()

    def _submit(self, key: str, job: Asked) -> str:
        while True:
            response = self._http.post("/v1/jobs", json=job.body, headers={"Idempotency-Key": key})
            if response.status_code == 202:
                return str(response.json()["id"])
            assert response.status_code == 503, response.text
            assert "Retry-After" in response.headers
            sleep(0.2)


def test_two_hundred_jobs_end_once_and_rightly_whatever_is_killed(stack, asked):
    clients = [
        Client(stack.api.url, f"client-{number}", asked[number::NUM_CLIENTS])
        for number in range(NUM_CLIENTS)
    ]
    for client in clients:
        client.start()

    wait_until(lambda: num_ended(stack) >= NUM_JOBS // 4)
    stack.replace_worker()
    wait_until(lambda: num_ended(stack) >= NUM_JOBS // 2)
    stack.server.restart()
    for client in clients:
        client.join()
    wait_until(lambda: num_ended(stack) >= NUM_JOBS)

    accepted = {job_id: job for client in clients for job_id, job in client.accepted.items()}
    assert len(accepted) == NUM_JOBS
    assert wrong_ends(stack, accepted) == {}
    assert live_jobs(stack.client) == []
    assert faults_in(stack.client) == []
    assert used_blocks(stack) == 0
    stack.worker.signal(signal.SIGTERM)
    assert stack.worker.wait() == 0


def num_ended(stack: Stack) -> int:
    totals = stack.queue.totals(generate_queue("SmolLM2-135M-Instruct"))
    return sum(totals.get(state.value, 0) for state in JobState if state.is_terminal)


def wrong_ends(stack: Stack, accepted: dict[str, Asked]) -> dict[str, Any]:
    """Return the jobs that ended otherwise than they should have, as the API tells of them."""
    wrong = {}
    with httpx.Client(
        base_url=stack.api.url, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False
    ) as http:
        for job_id, job in accepted.items():
            told = http.get(f"/v1/jobs/{job_id}").json()
            text = told["result"]["text"] if told["result"] else ""
            expected = job.text if job.state is JobState.COMPLETED else ""
            if (told["state"], text) != (job.state, expected):
                wrong[job_id] = (told["state"], text, job)
    return wrong


def used_blocks(stack: Stack) -> float:
    metrics = httpx.get(f"http://127.0.0.1:{stack.metrics_port}/metrics", trust_env=False).text
    (line,) = [
        line for line in metrics.splitlines() if line.startswith("promptmill_kv_cache_used_blocks{")
    ]
    return float(line.rpartition(" ")[2])


def wait_until(condition: Any, limit_s: float = 180.0) -> None:
    until_s = monotonic() + limit_s
    while not condition():
        assert monotonic() < until_s, f"not within {limit_s} s"
        sleep(0.05)
