"""The webhook endpoints as the unmodified openai package manages them, on a real stack."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest
from prometheus_client import CollectorRegistry
from werkzeug.serving import make_server

from api.app import create_api
from ops.metrics import WebhookMetrics
from ops.settings import Settings
from queueing.clock import SystemClock
from queueing.deliveries import DeliveryLog
from queueing.endpoints import EndpointStore
from queueing.job import WEBHOOK_QUEUE, Job, JobResult, JobState, Outcome
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.webhook_url import UrlPolicy
from tests.support.cpu_worker import cpu_worker
from tests.support.receiver import Receiver, answers, receiver
from workers.webhook_client import WebhookClient
from workers.webhook_lanes import Lanes
from workers.webhook_receivers import Receivers
from workers.webhooks import RetrySchedule, WebhookDeliverer

API_KEY = "pm_test-key"
EVENT_TYPES = ["batch.completed", "response.completed"]


@dataclass(frozen=True, slots=True)
class Stack:
    """A client of a running API whose webhooks a worker delivers to one receiver."""

    client: openai.OpenAI
    queue: JobQueue
    receiver: Receiver

    def unwrap(self, received, secret):
        """Return the event in a request as the client reads it."""
        body = received.body.decode()
        return self.client.webhooks.unwrap(body, received.headers, secret=secret)

    def register(self):
        return self.client.webhooks.create(
            name="mine",
            url=self.receiver.url(),
            event_types=["batch.completed", "response.completed"],
        )


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver(answers(202)) as running:
        yield running


@pytest.fixture
def stack(redis_url, hooks) -> Iterator[Stack]:
    settings = Settings.model_validate(
        {
            "redis_url": redis_url,
            "api_key": API_KEY,
            "webhook_allow_http": True,
            "webhook_allow_networks": ["127.0.0.0/8"],
            "webhook_allow_ports": [hooks.port],
        }
    )
    store = connect(redis_url)
    queue = JobQueue(store)
    deliverer = _deliverer(settings, queue, hooks.port)
    api = create_api(settings)
    server = make_server("127.0.0.1", 0, api.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with (
        cpu_worker(redis_url, queue, WEBHOOK_QUEUE, deliverer.deliver, slots=2),
        openai.OpenAI(api_key=API_KEY, base_url=url, max_retries=0) as client,
    ):
        yield Stack(client, queue, hooks)
    server.shutdown()
    thread.join()
    server.server_close()
    api.close()
    store.close()


def _deliverer(settings: Settings, queue: JobQueue, port: int) -> WebhookDeliverer:
    store = connect(settings.redis_url)
    policy = UrlPolicy.of(allow_http=True, allow_networks=["127.0.0.0/8"], allowed_ports=[port])
    return WebhookDeliverer(
        queue,
        WebhookClient(policy, 5.0, SystemClock()),
        Receivers(EndpointStore(store), DeliveryLog(store), Lanes(slots=2), None),
        WebhookMetrics(CollectorRegistry()),
        RetrySchedule(),
    )


def strictly(model, found):
    """Validate again what the client took as it came."""
    return model.model_validate(found.to_dict(), strict=True)


def test_an_endpoint_is_created_listed_updated_and_deleted(stack):
    created = stack.register()
    updated = stack.client.webhooks.update(created.id, name="other")
    listed = list(stack.client.webhooks.list(limit=1))
    retrieved = stack.client.webhooks.retrieve(created.id)
    deleted = stack.client.webhooks.delete(created.id)

    strictly(openai.types.webhooks.WebhookEndpointWithSecret, created)
    strictly(openai.types.webhooks.WebhookEndpoint, retrieved)
    assert updated.name == "other"
    assert [endpoint.id for endpoint in listed] == [created.id]
    assert retrieved.event_types == EVENT_TYPES
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        stack.client.webhooks.retrieve(created.id)


def test_a_test_event_arrives_and_its_status_comes_back(stack):
    created = stack.register()

    result = stack.client.webhooks.test(created.id, event_type="batch.completed")

    (received,) = stack.receiver.take(1)
    strictly(openai.types.webhooks.WebhookEndpointTestResult, result)
    assert result.status_code == 202
    event = stack.unwrap(received, created.signing_secret)
    assert isinstance(event, openai.types.webhooks.BatchCompletedWebhookEvent)


def test_a_response_that_ends_reaches_the_endpoint_as_openais_event(stack):
    created = stack.register()
    stack.queue.enqueue(Job("resp_1", "generate.m", "{}"))
    (claim,) = stack.queue.claim("generate.m", "engine", limit=1)

    stack.queue.finish(Outcome(claim.lease, JobResult(JobState.COMPLETED)))

    (received,) = stack.receiver.take(1)
    event = stack.unwrap(received, created.signing_secret)
    strictly(openai.types.webhooks.ResponseCompletedWebhookEvent, event)
    assert event.data.id == "resp_1"


def test_after_a_rotation_the_new_secret_verifies_and_the_old_does_as_long_as_it_was_kept(stack):
    old = stack.register()
    new = stack.client.webhooks.rotate_secret(old.id, keep_old_secret_active_for_24_hours=True)
    stack.client.webhooks.test(old.id, event_type="batch.failed")

    (received,) = stack.receiver.take(1)

    assert stack.unwrap(received, old.signing_secret) == stack.unwrap(received, new.signing_secret)


def test_the_event_types_are_listed(stack):
    listed = stack.client.webhooks.event_types.list()

    strictly(openai.types.webhooks.WebhookEventTypeList, listed)
    assert set(EVENT_TYPES) <= set(listed.data)


def test_what_is_not_offered_is_a_bad_request(stack):
    with pytest.raises(openai.BadRequestError, match="event_types"):
        stack.client.webhooks.create(
            name="mine", url=stack.receiver.url(), event_types=["eval.run.failed"]
        )
