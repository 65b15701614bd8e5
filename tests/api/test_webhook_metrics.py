import pytest
from prometheus_client import CollectorRegistry, generate_latest

from api.webhook_metrics import WebhookBacklog
from queueing.clock import ManualClock
from queueing.deliveries import AttemptEnd, AttemptNote, DeliveryLog, Verdict
from queueing.endpoints import EndpointForm, EndpointStore, EventType
from queueing.job import WEBHOOK_QUEUE, Job
from queueing.queue import JobQueue
from queueing.store import connect

PENDING = "promptmill_webhook_pending"
OLDEST = "promptmill_webhook_oldest_pending_age_seconds"
DISABLED = "promptmill_webhook_endpoints_disabled"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def deliveries(redis_url, clock):
    with connect(redis_url) as connection:
        yield JobQueue(connection, clock=clock)


@pytest.fixture
def endpoints(redis_url):
    with connect(redis_url) as connection:
        yield EndpointStore(connection)


@pytest.fixture
def registry(deliveries, endpoints):
    registry = CollectorRegistry()
    WebhookBacklog(deliveries, endpoints, registry)
    return registry


def test_nothing_pending_is_told_as_nothing(registry):
    assert registry.get_sample_value(PENDING) == 0
    assert registry.get_sample_value(OLDEST) == 0
    assert registry.get_sample_value(DISABLED) == 0


def test_what_is_due_under_way_or_for_later_is_pending(registry, deliveries, clock):
    deliveries.enqueue(Job("evt_1", WEBHOOK_QUEUE, "{}"))
    deliveries.claim(WEBHOOK_QUEUE, "cpu", limit=1)
    deliveries.enqueue(Job("evt_2", WEBHOOK_QUEUE, "{}"))
    deliveries.enqueue(Job("evt_3", WEBHOOK_QUEUE, "{}", not_before_s=60))
    clock.advance(ms=5_000)

    assert registry.get_sample_value(PENDING) == 3
    assert registry.get_sample_value(OLDEST) == 5


def test_an_endpoint_that_a_delivery_disabled_is_told(registry, endpoints, redis_url):
    form = EndpointForm("x", "https://example.com/", (EventType.JOB_DEAD,))
    endpoint, _ = endpoints.create("acme", form)
    verdict = Verdict(AttemptEnd.GIVEN_UP, disable_reason="gone")

    with connect(redis_url) as connection:
        log = DeliveryLog(connection)
        log.note(endpoint.id, "dlv_1", AttemptNote("4xx", 410, duration_ms=1), verdict)

    assert registry.get_sample_value(DISABLED) == 1


def test_a_store_that_is_away_leaves_the_backlog_out():
    with connect("redis://127.0.0.1:1/0") as nowhere:
        registry = CollectorRegistry()
        WebhookBacklog(JobQueue(nowhere), EndpointStore(nowhere), registry)

        assert PENDING not in generate_latest(registry).decode()
