import queue
import threading

import httpx
import pytest

from ops.webhook_listener import Heard, WebhookListener
from queueing.clock import ManualClock
from queueing.webhook_signature import WebhookSecret, signed_headers

NEW, OLD = WebhookSecret(b"n" * 32), WebhookSecret(b"o" * 32)
BODY = b'{"id":"evt_1","type":"job.completed","data":{"id":"job_1"}}'


@pytest.fixture
def heard():
    return queue.SimpleQueue()


@pytest.fixture
def listener(heard):
    listener = WebhookListener(0, [NEW, OLD], ManualClock(), heard.put)
    thread = threading.Thread(target=listener.serve, daemon=True)
    thread.start()
    yield listener
    listener.close()
    thread.join()


def send(listener, secret, body=BODY, **changed):
    headers = signed_headers((secret,), "evt_1", ManualClock().now_ms() // 1000, BODY)
    return httpx.post(listener.url, content=body, headers=headers | changed).status_code


@pytest.mark.parametrize("secret", [NEW, OLD], ids=["new", "old"])
def test_what_one_of_the_secrets_signed_is_taken_and_told(listener, heard, secret):
    assert send(listener, secret) == 204

    assert heard.get(timeout=5) == Heard("evt_1", "job.completed", "job_1")


def test_what_somebody_else_signed_is_refused_and_told(listener, heard):
    assert send(listener, WebhookSecret(b"x" * 32)) == 400

    assert heard.get(timeout=5) == Heard("evt_1", problem="no signature matches")


def test_a_changed_body_is_refused(listener, heard):
    assert send(listener, NEW, body=BODY + b" ") == 400

    assert heard.get(timeout=5).problem == "no signature matches"


def test_what_is_not_signed_at_all_is_refused(listener, heard):
    assert httpx.post(listener.url, content=BODY).status_code == 400

    assert heard.get(timeout=5).problem == "a signature header is missing or malformed"
