"""What we send, as the packages see it that receivers use."""

import datetime as dt

import openai
import pytest
import standardwebhooks

from queueing.clock import SystemClock
from queueing.webhook_signature import WebhookSecret, signed_headers
from tests.support.deliveries import SECRET, DeliveryBench
from tests.support.receiver import receiver

OLD = WebhookSecret(b"o" * 32)
BODY = '{"id":"evt_1","text":"na\u00efve \u2615 \U0001f600","score":0.1}'


def now_s() -> int:
    """Return this very second: what is verified must not be older than five minutes."""
    return SystemClock().now_ms() // 1000


def unwrap(body: str, headers: dict[str, str], secret: WebhookSecret):
    client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1:9")
    return client.webhooks.unwrap(body, headers, secret=secret.text)


@pytest.fixture
def received(redis_url):
    """Return a delivery as it arrived, made by the real queue and sent by the real client."""
    with receiver() as server:
        bench = DeliveryBench(redis_url, [server.port])
        bench.end_a_job(server.url())
        bench.deliver_due()
        (arrived,) = server.take(1)
    return arrived


def test_a_delivery_verifies_with_standardwebhooks(received):
    event = standardwebhooks.Webhook(SECRET.text).verify(received.body, received.headers)

    assert event["id"] == received.headers["webhook-id"] == "evt_1"
    assert event["object"] == "event"
    assert event["type"] == "job.completed"
    assert event["data"] == {"id": "job_1"}


def test_a_delivery_unwraps_with_the_openai_client(received):
    event = unwrap(received.body.decode(), received.headers, SECRET)

    assert event.id == "evt_1"
    assert event.type == "job.completed"
    assert event.data.id == "job_1"


def test_our_signature_is_standardwebhooks_own():
    at_s = now_s()
    at = dt.datetime.fromtimestamp(at_s, tz=dt.UTC)

    theirs = standardwebhooks.Webhook(SECRET.text).sign("evt_1", at, BODY)

    ours = signed_headers((SECRET,), "evt_1", at_s, BODY.encode())["webhook-signature"]
    assert ours == theirs


@pytest.mark.parametrize("secret", [SECRET, OLD], ids=["new", "old"])
def test_both_packages_accept_either_secret_of_a_rotation(secret):
    headers = signed_headers((SECRET, OLD), "evt_1", now_s(), BODY.encode())

    assert standardwebhooks.Webhook(secret.text).verify(BODY, headers)
    assert unwrap(BODY, headers, secret)


@pytest.mark.parametrize("off_s", [-360, 360])
def test_both_packages_refuse_a_timestamp_six_minutes_off(off_s):
    headers = signed_headers((SECRET,), "evt_1", now_s() + off_s, BODY.encode())

    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET.text).verify(BODY, headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrap(BODY, headers, SECRET)
