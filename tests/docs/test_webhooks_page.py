"""Every example of docs/webhooks.md is run as it stands there."""

import re
import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from api.app import create_api
from engine.registry import Provenance, write_manifest
from ops.settings import Settings
from queueing.clock import SystemClock
from queueing.deliveries import AttemptEnd, AttemptNote, DeliveryLog, Verdict
from queueing.job import WEBHOOK_QUEUE, JobResult, JobState, Outcome
from queueing.outbox import decode_delivery
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.webhook_signature import WebhookSecret, signed_headers
from tests.support.cpu_worker import cpu_worker
from tests.support.tiny_model import write_tiny_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "webhooks.md").read_text()
API_KEY = "pm_test-key"
SECRET = WebhookSecret.generate()


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def client(redis_url, tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    write_manifest(folder, Provenance(name="tiny"))
    settings = Settings(
        redis_url=redis_url,
        api_key=SecretStr(API_KEY),
        webhook_secret=SecretStr(SECRET.text),
        models=[folder],
    )
    api = create_api(settings)
    yield api.app.test_client()
    api.close()


@pytest.fixture
def delivering(redis_url):
    """Take every delivery as a worker does whose receivers are all well."""
    with connect(redis_url) as connection:
        queue, log = JobQueue(connection), DeliveryLog(connection)

        def deliver(lease, request):
            delivery = decode_delivery(request)
            note = AttemptNote("2xx", 200, 1)
            verdict = Verdict(AttemptEnd.DELIVERED)
            assert delivery.endpoint_id is not None
            log.note(delivery.endpoint_id, lease.job_id, note, verdict)
            queue.finish(Outcome(lease, JobResult(JobState.COMPLETED)))

        with cpu_worker(redis_url, queue, WEBHOOK_QUEUE, deliver, slots=1):
            yield


def commands() -> list[str]:
    """Return the page's shell commands, each on one line and without comments."""
    lines = [
        line
        for example in examples("bash")
        for line in re.sub(r"\\\n|^#.*\n", "", example, flags=re.MULTILINE).splitlines()
    ]
    return [line for line in lines if line]


def run_all(client, lines: list[str]) -> dict[str, int]:
    """Run commands in order, with the last endpoint's id where one is wanted; return statuses."""
    endpoint_id, statuses = "", {}
    for line in lines:
        answer = run_curl(client, line, endpoint_id)
        statuses[line] = answer.status_code
        if answer.json.get("object") == "webhook_endpoint":
            endpoint_id = answer.json["id"]
    return statuses


def run_curl(client, command: str, endpoint_id: str):
    """Send what a curl command would."""
    parser = ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-H", dest="header")
    parser.add_argument("-X", dest="method")
    parser.add_argument("--json")
    command = command.replace("$URL", "").replace("$KEY", API_KEY).replace("$ENDPOINT", endpoint_id)
    curl, *words = shlex.split(command)
    assert curl == "curl"
    given = parser.parse_args(words)
    name, _, value = given.header.partition(": ")
    return client.open(
        given.url,
        method=given.method or ("POST" if given.json else "GET"),
        headers={name: value},
        data=given.json,
        content_type="application/json" if given.json else None,
    )


@pytest.mark.usefixtures("delivering")
def test_every_command_of_the_page_is_taken(client):
    answers = run_all(client, commands())

    assert len(answers) == 10
    assert set(answers.values()) <= {200, 202}, answers


def test_the_python_of_the_page_verifies_what_we_send():
    (source,) = examples("python")
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - the page's example is what is tested
    body = b'{"id":"evt_1","type":"job.completed"}'
    headers = signed_headers((SECRET,), "evt_1", SystemClock().now_ms() // 1000, body)

    assert names["receive"](SECRET.text, headers, body)["id"] == "evt_1"
