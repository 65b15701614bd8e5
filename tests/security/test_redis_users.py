"""The whole system runs as the users of ops/redis/users.acl, who may do nothing else."""

import json
import os
import re
import sys
from pathlib import Path

import httpx
import pytest
import redis
from celery import Celery

from tests.support.api_server import ApiServer
from tests.support.cluster import Cluster, WorkerProcess
from tests.support.jobs import MODEL
from tests.support.live_stack import API_KEY, write_fake_model
from tests.support.server import embedded_binary
from workers.celery_config import make_celery

USERS = Path(__file__).resolve().parents[2] / "ops" / "redis" / "users.acl"
SCRIPTS = Path(__file__).resolve().parents[2] / "queueing" / "scripts"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def users():
    """Return the rules of each user, with passwords put in."""
    lines = [line for line in USERS.read_text().splitlines() if line.startswith("user ")]
    found = {}
    for line in lines:
        _, name, *rules = line.split()
        found[name] = [re.sub("^>.*_PASSWORD$", f">{name}-password", rule) for rule in rules]
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("users"), embedded_binary())
    for name, rules in users().items():
        if name != "default":  # the test's own way in
            cluster.client.execute_command("ACL", "SETUSER", name, "reset", *rules)
    yield cluster
    cluster.stop()


def url_of(cluster, user):
    return cluster.server.url.replace("redis://", f"redis://{user}:{user}-password@")


@pytest.fixture(scope="module")
def http(cluster):
    """Start the API and both kinds of worker, and return a client of the API."""
    model = write_fake_model(cluster.folder / MODEL)
    settings = {
        "redis_url": url_of(cluster, "promptmill_api"),
        "api_key": API_KEY,
        "models": json.dumps([str(model)]),
        "data_dir": str(cluster.folder / "data"),
    }
    worker_url = url_of(cluster, "promptmill_worker")
    cluster.start_worker(redis_url=worker_url)
    environment = {f"PROMPTMILL_{name.upper()}": value for name, value in settings.items()}
    environment |= {"PROMPTMILL_REDIS_URL": worker_url, "HOME": str(cluster.folder)}
    command = [sys.executable, "-m", "ops.cli", "worker", "cpu"]
    log = cluster.folder / "cpu.log"
    cluster.workers.append(WorkerProcess(command, environment | {"PATH": os.defpath}, log))
    server = ApiServer(cluster.folder / "api.log", settings)
    server.start()
    headers = {"Authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30) as http:
        yield http
    server.stop()


def denials(cluster):
    return [
        f"{entry['username']} {entry['reason']} {entry['object']}"
        for entry in cluster.client.acl_log()
    ]


def test_every_way_of_use_works(cluster, http):
    job = http.post("/v1/jobs", json={"prompt": "hi", "max_tokens": 3})
    waited = http.get(job.headers["Location"], params={"wait": 20})
    chat = http.post("/v1/chat/completions", json=CHAT)
    streamed = http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    erased = http.delete(job.headers["Location"])
    long_job = http.post("/v1/jobs", json={"prompt": "hi", "max_tokens": 4_000})
    cancelled = http.post(f"{long_job.headers['Location']}/cancel")
    ready = http.get("/readyz")
    metrics = http.get("/metrics")

    assert waited.json()["state"] == "completed"
    assert chat.json()["choices"][0]["finish_reason"] == "length"
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert (erased.status_code, cancelled.json()["state"]) == (204, "cancelled")
    assert (ready.status_code, metrics.status_code) == (200, 200)
    assert denials(cluster) == []


def test_a_batch_runs_to_its_output(cluster, http):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
    files = {"file": ("lines.jsonl", json.dumps(line).encode())}
    file_id = http.post("/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    path = f"/v1/batches/{http.post('/v1/batches', json=body).json()['id']}"

    cluster.wait_until(lambda: http.get(path).json()["status"] == "completed")

    assert http.get(path).json()["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    assert denials(cluster) == []


@pytest.mark.usefixtures("http")
def test_workers_answer_celerys_remote_control(cluster):
    app: Celery = make_celery("asking", url_of(cluster, "promptmill_worker"), None)

    def answered():
        return app.control.ping(timeout=1)

    cluster.wait_until(answered)
    assert denials(cluster) == []


@pytest.mark.parametrize("user", ["promptmill_api", "promptmill_worker"])
@pytest.mark.parametrize(
    "command",
    [
        ("CONFIG", "GET", "*"),
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("MONITOR",),
        ("DEBUG", "SLEEP", "0"),
        ("ACL", "LIST"),
        ("SHUTDOWN",),
        ("SCRIPT", "FLUSH"),
        ("GET", "somebody:elses"),
        ("PUBLISH", "somebody:elses", "x"),
        ("EVAL", "return redis.call('GET', 'somebody:elses')", "0"),
    ],
    ids=" ".join,
)
def test_nothing_else_is_allowed(cluster, user, command):
    address = url_of(cluster, user)

    with redis.Redis.from_url(address) as client, pytest.raises(redis.ResponseError) as refused:
        client.execute_command(*command)

    cluster.client.acl_log_reset()
    assert re.search("permission|not allowed", str(refused.value))


def test_what_scripts_call_is_allowed_to_both():
    called = {
        command.lower()
        for path in SCRIPTS.glob("*.lua")
        for command in re.findall(r"redis\.call\('([A-Z]+)'", path.read_text())
    }
    rules = users()

    missing = {
        user: sorted(called - {rule.removeprefix("+") for rule in rules[user]})
        for user in ("promptmill_api", "promptmill_worker")
    }

    assert missing == {"promptmill_api": [], "promptmill_worker": []}
