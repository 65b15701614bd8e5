import signal
import subprocess
import sys

import httpx
import pytest
from click.testing import CliRunner

from ops.cli import main
from queueing.clock import SystemClock
from queueing.webhook_signature import WebhookSecret, signed_headers

SECRET = WebhookSecret.generate()
BODY = b'{"id":"evt_1","type":"job.completed","data":{"id":"job_1"}}'


@pytest.fixture
def listening(tmp_path):
    secret_file = tmp_path / "secret"
    secret_file.write_text(SECRET.text + "\n")
    command = [sys.executable, "-u", "-m", "ops.cli", "webhooks", "listen", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--secret-file", str(secret_file)], stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def test_what_arrives_is_verified_and_printed_until_ctrl_c(listening):
    url = listening.stdout.readline().removeprefix("listening on ").strip()
    headers = signed_headers((SECRET,), "evt_1", SystemClock().now_ms() // 1000, BODY)

    answer = httpx.post(url, content=BODY, headers=headers)
    printed = listening.stdout.readline()
    listening.send_signal(signal.SIGINT)

    assert answer.status_code == 204
    assert printed == "evt_1 job.completed job_1\n"
    assert listening.wait(timeout=10) == 0


def test_without_a_secret_it_says_where_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTMILL_DATA_DIR", str(tmp_path))

    refused = CliRunner().invoke(main, ["webhooks", "listen"])

    assert refused.exit_code == 1
    assert "--secret-file" in refused.output


def test_what_is_no_secret_is_refused_without_being_shown(tmp_path):
    secret_file = tmp_path / "secret"
    secret_file.write_text("hunter2")

    refused = CliRunner().invoke(main, ["webhooks", "listen", "--secret-file", str(secret_file)])

    assert refused.exit_code == 1
    assert "hunter2" not in refused.output
