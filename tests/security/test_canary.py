"""A marker in every prompt, sent through every way of success and failure, is afterwards in its own
keys and files and nowhere else; and once erased, nowhere at all.
"""

import base64
import io
import json
import os
import re
import secrets
import sys
import threading
from contextlib import ExitStack
from time import monotonic, sleep

import httpx
import pytest

from tests.support.api_server import ApiServer
from tests.support.cluster import Cluster, WorkerProcess
from tests.support.fake_engine import HUNGRY, KILLS
from tests.support.jobs import MODEL
from tests.support.live_stack import API_KEY, write_fake_model
from tests.support.receiver import answers, receiver
from tests.support.server import embedded_binary

# Where texts may be: a job's request, its result, and its stream while it has one.
OWN_KEY = re.compile(r"\{pm\}:job:[^:]+:(request|result|stream)")
# What carries them there, from a client of the server; what it does shows as a command of its own.
CARRIER = re.compile(r"EVALSHA ")
NUM_LOSSES = 2


class Monitor(threading.Thread):
    """Notes every command the server runs, with its arguments as they are."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self._client = client
        self._told_to_stop = threading.Event()
        self.commands = []

    def run(self):
        with self._client.monitor() as monitor:
            for told in monitor.listen():
                self.commands.append((told["client_type"], told["command"]))
                if self._told_to_stop.is_set():
                    return

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._told_to_stop.set()
        self._client.ping()
        self.join(10)


class Installation:
    """All processes of an installation, and all that they leave behind."""

    def __init__(self, folder, hook):
        self.cluster = Cluster(folder, embedded_binary(), max_losses=NUM_LOSSES)
        self.hook = hook
        self._settings = {
            "redis_url": self.cluster.server.url,
            "api_key": API_KEY,
            "models": json.dumps([str(write_fake_model(folder / MODEL))]),
            "data_dir": str(folder / "data"),
            "webhook_secret": "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode(),
            "webhook_allow_http": "true",
            "webhook_allow_networks": '["127.0.0.0/8"]',
            "webhook_allow_ports": json.dumps([hook.port, 9]),
            "max_body_bytes": "65536",
            "log_level": "DEBUG",
            "lease_s": "1.5",
            "renew_s": "0.5",
            "max_losses": str(NUM_LOSSES),
        }
        self.server = ApiServer(folder / "api.log", self._settings)
        self.http = httpx.Client(
            base_url=self.server.url, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=30
        )

    def start(self):
        environment = {f"PROMPTMILL_{key.upper()}": one for key, one in self._settings.items()}
        environment |= {"HOME": str(self.cluster.folder), "PATH": os.defpath}
        command = [sys.executable, "-m", "ops.cli", "worker", "cpu"]
        log = self.cluster.folder / "cpu.log"
        self.cluster.workers.append(WorkerProcess(command, environment, log))
        self.start_worker()
        self.server.start()

    def start_worker(self):
        return self.cluster.start_worker(log_level="DEBUG")

    def submit(self, prompt, **fields):
        return self.submit_body({"prompt": prompt, "max_tokens": 40, **fields})

    def submit_body(self, body):
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return answer.headers["Location"]

    def end_of(self, path):
        """Return a job once it has ended."""
        job = self.http.get(path, params={"wait": 20}).json()
        assert job["finished_at"] is not None, job
        return job

    def logs(self):
        return self.server.log + "".join(worker.log for worker in self.cluster.workers)

    def stop(self):
        self.http.close()
        self.server.stop()
        self.cluster.stop()


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    with ExitStack() as stack:
        hook = stack.enter_context(receiver(answers(200)))
        installation = Installation(tmp_path_factory.mktemp("canary"), hook)
        stack.callback(installation.stop)
        installation.start()
        yield installation


def forms_of(marker):
    """Return a text as it is, and as it looks inside of base64, which hides where it begins."""
    yield marker
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + marker.encode()).decode()
        yield encoded[(0, 4, 4)[offset] : len(encoded) // 4 * 4 - 4]


def holds(text, markers):
    return any(form in text for marker in markers for form in forms_of(marker))


def through_every_success(installation, marker):
    """Return where what was made can be erased, what the model said, and what a webhook told."""
    http = installation.http
    hooked = installation.submit(f"{marker} told", webhook_url=installation.hook.url())
    streamed = {"model": MODEL, "input": f"{marker} stream", "stream": True, "max_output_tokens": 9}
    response = {"model": MODEL, "input": f"{marker} later", "background": True}
    response_id = http.post("/v1/responses", json=response).json()["id"]
    followed = http.post("/v1/responses", json=streamed).text
    streamed_id = re.findall("resp_[0-9A-Za-z]{22}", followed)[0]
    embedded = installation.submit_body({"input": f"{marker} vector", "priority": "bulk"})
    assert installation.end_of(embedded)["state"] == "completed"
    said = [installation.end_of(hooked)["result"]["text"]]
    installation.cluster.wait_until(lambda: not installation.hook.arrivals.empty())
    (told,) = installation.hook.take(1)
    made = [hooked, embedded, f"/v1/responses/{response_id}", f"/v1/responses/{streamed_id}"]
    return made, said, told.body.decode()


def through_every_live_answer(http, marker):
    """Ask what is waited for; nobody can erase these, they go with their lifetime."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": marker}], "max_tokens": 9}
    asked = [
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"stream": True}),
        ("/v1/chat/completions", chat | {"n": 2, "logprobs": True}),
        ("/v1/completions", {"model": MODEL, "prompt": marker, "max_tokens": 9}),
        ("/v1/completions", {"model": MODEL, "prompt": marker, "max_tokens": 9, "stream": True}),
        ("/v1/embeddings", {"model": MODEL, "input": [marker, f"{marker} again"]}),
    ]
    answers = [http.post(path, json=body) for path, body in asked]
    assert {answer.status_code for answer in answers} == {200}


def through_every_failure(installation, marker):
    """Return the paths at which what was made can be erased."""
    http = installation.http
    refused = [
        http.post("/v1/jobs", json={"prompt": f"{marker} long" * 500}),
        http.post("/v1/jobs", json={"prompt": marker, "max_tokens": -1}),
        http.post("/v1/jobs", json={"prompt": marker, "surprise": marker}),
        http.post("/v1/jobs", json={"prompt": marker, "webhook_url": f"https://10.0.0.1/{marker}"}),
        http.post("/v1/jobs", json={"prompt": marker, "model": f"no-{marker}"}),
        http.post("/v1/jobs", content=b'{"prompt": "' + marker.encode()),
        http.post("/v1/jobs", json={"prompt": marker * 9_000}),
        http.post(
            "/v1/jobs", json={"prompt": marker}, headers={"Idempotency-Key": f"{marker} {marker}"}
        ),
        http.post("/v1/chat/completions", json={"model": MODEL, "messages": [{"say": marker}]}),
        http.post("/v1/responses", json={"model": MODEL, "input": [{"content": marker}]}),
        http.post("/v1/embeddings", json={"model": MODEL, "input": [marker, marker * 200]}),
        http.post("/v1/embeddings", json={"model": MODEL, "input": [marker, 1]}),
        http.get(f"/v1/jobs/{marker}"),
        http.get("/v1/jobs", params={"state": marker}),
        http.get("/v1/models", headers={"Authorization": f"Bearer {marker}"}),
    ]
    assert {answer.status_code // 100 for answer in refused} == {4}
    assert not any(marker in answer.text for answer in refused)
    late = installation.submit(f"{marker} late", deadline_s=0.001)
    cancelled = installation.submit(f"{marker} stop", max_tokens=3_000)
    http.post(f"{cancelled}/cancel")
    unheard = installation.submit(f"{marker} mute", webhook_url="http://127.0.0.1:9/")
    hungry = installation.submit(f"{HUNGRY} {marker}", max_tokens=9)
    ends = [installation.end_of(path)["state"] for path in (late, cancelled, unheard, hungry)]
    assert ends == ["expired", "cancelled", "completed", "completed"]
    return [late, cancelled, unheard, hungry, through_a_crash(installation, marker)]


def through_a_crash(installation, marker):
    deadly = installation.submit(f"{KILLS} {marker}")
    for _ in range(NUM_LOSSES):
        worker = installation.cluster.workers[-1]
        worker.wait()
        installation.start_worker()
    assert installation.end_of(deadly)["state"] == "dead"
    return deadly


def through_batches(installation, marker):
    said = {"role": "user", "content": marker}
    chats = [
        {"model": MODEL, "messages": [said], "max_tokens": 9},
        {"model": MODEL, "messages": [{"role": "user", "content": marker * 900}]},
        {"model": MODEL, "messages": [said], "surprise": marker},
    ]
    responses = [
        {"model": MODEL, "input": marker, "instructions": marker, "max_output_tokens": 9},
        {"model": MODEL, "input": [said | {"content": []}, {"surprise": marker}]},
    ]
    return [
        *through_a_batch(installation, "/v1/chat/completions", chats),
        *through_a_batch(installation, "/v1/responses", responses),
    ]


def through_a_batch(installation, endpoint, bodies):
    http = installation.http
    lines = "".join(
        json.dumps({"custom_id": str(n), "method": "POST", "url": endpoint, "body": body}) + "\n"
        for n, body in enumerate(bodies)
    )
    upload = {"file": ("lines.jsonl", io.BytesIO(lines.encode()))}
    file_id = http.post("/v1/files", data={"purpose": "batch"}, files=upload).json()["id"]
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
    path = f"/v1/batches/{http.post('/v1/batches', json=body).json()['id']}"
    installation.cluster.wait_until(lambda: http.get(path).json()["status"] == "completed")
    batch = http.get(path).json()
    files = (file_id, batch["output_file_id"], batch["error_file_id"])
    return [f"/v1/files/{one}" for one in files]


def everything_in(client):
    """Return each key with all that it holds, as text."""
    readers = {
        "string": client.get,
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        "stream": client.xrange,
    }
    return {key: str(readers[client.type(key)](key)) for key in client.scan_iter("*")}


def files_with(folder, markers):
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path for path in found if holds(path.read_bytes().decode("latin-1"), markers)}


@pytest.mark.timeout(120)
def test_a_marker_is_in_its_own_keys_alone_and_erased_everywhere(installation):
    marker = secrets.token_hex(16)
    client = installation.cluster.client
    with Monitor(client) as monitor:
        erasable, said, told = through_every_success(installation, marker)
        erasable += through_batches(installation, marker)
        erasable += through_every_failure(installation, marker)
        passing = secrets.token_hex(16)
        through_every_live_answer(installation.http, passing)
    erased_markers = [marker, *said]
    markers = [*erased_markers, passing]
    metrics = installation.http.get("/metrics").text

    leaking = [
        command
        for origin, command in monitor.commands
        if holds(command, markers)
        and not (OWN_KEY.search(command) if origin == "lua" else CARRIER.match(command))
    ]
    assert len(monitor.commands) > 500
    assert [command[:300] for command in leaking] == []
    assert not holds(installation.logs(), markers)
    assert not holds(metrics, markers)
    assert not holds(told, markers)
    kept = {key for key, held in everything_in(client).items() if holds(key + held, markers)}
    assert kept
    assert [key for key in kept if not OWN_KEY.fullmatch(key)] == []
    folder = installation.cluster.folder
    append_only = set((folder / "redis").rglob("*.aof"))
    assert files_with(folder, markers) - append_only <= files_with(folder / "data", markers)

    erased = [installation.http.delete(path) for path in erasable]

    assert {answer.status_code for answer in erased} <= {200, 204}
    everything = everything_in(client)
    assert [key for key, held in everything.items() if holds(key + held, erased_markers)] == []
    rewrite(client)
    assert files_with(folder, erased_markers) == set()


def rewrite(client):
    """Let the server write its append-only file anew, and wait for it."""
    client.bgrewriteaof()
    until_s = monotonic() + 20
    while True:
        state = client.info("persistence")
        if not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
            return
        assert monotonic() < until_s, "the append-only file was not rewritten"
        sleep(0.05)
