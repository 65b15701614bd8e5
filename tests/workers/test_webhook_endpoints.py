import threading

import pytest

from queueing.deliveries import DeliveryRecord
from queueing.endpoints import Endpoint, EndpointForm, EventType
from queueing.errors import FailureCode
from queueing.job import DEFAULT_TENANT, JobError, JobState
from queueing.pages import PageQuery
from queueing.store import connect
from tests.support.deliveries import DeliveryBench
from tests.support.receiver import answers, answers_in_turn, receiver
from workers.webhooks import STANDARD_SCHEDULE_S

TYPES = (EventType.JOB_COMPLETED,)


def only_delivery(bench: DeliveryBench, endpoint: Endpoint) -> DeliveryRecord:
    (record,) = bench.log.page(endpoint.id, PageQuery(limit=10)).items
    return record


def everything_in(url: str) -> str:
    """Return all that the store holds, as text."""
    with connect(url) as client:
        readers = {
            "string": client.get,
            "hash": client.hgetall,
            "list": lambda key: client.lrange(key, 0, -1),
            "set": client.smembers,
            "zset": lambda key: client.zrange(key, 0, -1),
        }
        return str([readers[client.type(key)](key) for key in client.scan_iter()])


@pytest.mark.fault("F25")
def test_a_receiver_that_is_gone_disables_its_endpoint(redis_url):
    with receiver(answers(410)) as server:
        bench = DeliveryBench(redis_url, [server.port])
        endpoint = bench.register(server.url(), *TYPES)
        bench.end_a_job(name="1")
        bench.end_a_job(name="2")

        bench.deliver_due()
        bench.end_a_job(name="3")

        assert len(server.take(1)) == 1
        assert server.arrivals.empty()
    assert bench.disabled_reason(endpoint) == "the receiver is gone (410)"
    states = [r.state for r in bench.log.page(endpoint.id, PageQuery(limit=10)).items]
    assert states == [JobState.FAILED, JobState.FAILED]


def test_an_address_that_is_never_allowed_disables_its_endpoint(redis_url):
    with receiver() as server:
        bench = DeliveryBench(redis_url, [server.port])
        endpoint = bench.register(f"http://10.0.0.1:{server.port}/", *TYPES)
        bench.end_a_job()

        bench.deliver_over(STANDARD_SCHEDULE_S[:4])

        assert server.arrivals.empty()
    assert bench.disabled_reason(endpoint) == "the receiver's address is not allowed"
    assert [a.result for a in only_delivery(bench, endpoint).attempts] == ["blocked"] * 4


def test_each_endpoint_has_its_own_secret_and_both_sign_during_a_rotation(redis_url):
    with receiver() as server:
        bench = DeliveryBench(redis_url, [server.port])
        form = EndpointForm("mine", server.url(), TYPES)
        endpoint, old = bench.endpoints.create(DEFAULT_TENANT, form)
        bench.end_a_job()

        new = bench.endpoints.rotate(endpoint.id, DEFAULT_TENANT, overlap_ms=60_000)
        bench.deliver_due()

        (received,) = server.take(1)
    assert new is not None
    assert bench.verified_id(received, old) == bench.verified_id(received, new) == "evt_1"


def test_what_waits_goes_to_the_url_the_endpoint_has_now(redis_url):
    with receiver() as before, receiver() as after:
        bench = DeliveryBench(redis_url, [before.port, after.port])
        endpoint = bench.register(before.url(), *TYPES)
        bench.end_a_job()

        bench.endpoints.update(endpoint.id, DEFAULT_TENANT, EndpointForm(url=after.url()))
        bench.deliver_due()

        assert after.take(1)
        assert before.arrivals.empty()


@pytest.mark.parametrize("status", [200, 500])
def test_what_a_receiver_answers_is_kept_and_told_nowhere(redis_url, capsys, status):
    marker = b"internal-page-4711"
    with receiver(answers(status, body=marker, x_internal="internal-page-4711")) as server:
        bench = DeliveryBench(redis_url, [server.port])
        endpoint = bench.register(server.url(), EventType.JOB_COMPLETED)
        bench.end_a_job()

        bench.deliver_due()

    (told,) = bench.log.page(endpoint.id, PageQuery(limit=9)).items
    kept = everything_in(redis_url)
    assert [attempt.status for attempt in told.attempts] == [status]
    assert marker.decode() not in kept + str(told) + capsys.readouterr().out


def test_what_waits_for_a_deleted_endpoint_is_given_up(redis_url):
    with receiver() as server:
        bench = DeliveryBench(redis_url, [server.port])
        endpoint = bench.register(server.url(), *TYPES)
        bench.end_a_job()
        delivery = only_delivery(bench, endpoint)
        bench.endpoints.delete(endpoint.id, DEFAULT_TENANT)

        bench.deliver_due()

        assert server.arrivals.empty()
    assert bench.state(delivery.id) is JobState.FAILED
    assert bench.error(delivery.id) == JobError(
        FailureCode.WEBHOOK_UNDELIVERABLE, "the endpoint was deleted"
    )


def test_a_paused_endpoint_is_left_alone_and_no_attempt_is_lost(redis_url):
    behaviour = answers_in_turn(answers(503, retry_after="60"), answers(200))
    with receiver(behaviour) as server:
        bench = DeliveryBench(redis_url, [server.port])
        endpoint = bench.register(server.url(), *TYPES)
        bench.end_a_job(name="1")
        bench.deliver_due()
        bench.end_a_job(name="2")

        bench.deliver_due()
        num_while_paused = server.arrivals.qsize()
        bench.clock.advance(ms=60_000)
        bench.deliver_due()

        assert num_while_paused == 1
        assert len(server.take(3)) == 3
    records = bench.log.page(endpoint.id, PageQuery(limit=10)).items
    assert [record.state for record in records] == [JobState.COMPLETED] * 2
    assert sorted(len(record.attempts) for record in records) == [1, 2]


def test_after_an_hour_of_outage_every_event_arrives_and_the_endpoint_is_still_enabled(redis_url):
    down = threading.Event()
    down.set()
    with receiver(lambda exchange: answers(503 if down.is_set() else 200)(exchange)) as server:
        bench = DeliveryBench(redis_url, [server.port])
        endpoint = bench.register(server.url(), *TYPES)
        events = {bench.end_a_job(name=str(number)) for number in range(30)}

        bench.deliver_for(3_600, step_s=60)
        num_attempts_while_down = server.arrivals.qsize()
        down.clear()
        bench.deliver_for(3 * 3_600, step_s=60)

        arrived = server.take(server.arrivals.qsize())
    assert num_attempts_while_down < 30
    assert {received.headers["webhook-id"] for received in arrived} == events
    page = bench.log.page(endpoint.id, PageQuery(limit=100), [JobState.COMPLETED])
    assert len(page.items) == 30
    assert bench.disabled_reason(endpoint) is None


def test_a_test_event_is_tried_once_even_when_the_endpoint_is_disabled(redis_url):
    with receiver(answers(500)) as server:
        bench = DeliveryBench(redis_url, [server.port])
        endpoint = bench.register(server.url(), *TYPES)
        bench.endpoints.update(endpoint.id, DEFAULT_TENANT, EndpointForm(is_enabled=False))
        bench.log.test(endpoint.id, DEFAULT_TENANT, EventType.BATCH_COMPLETED)

        bench.deliver_due()

        (received,) = server.take(1)
    assert b'"type":"batch.completed"' in received.body
    record = only_delivery(bench, endpoint)
    assert record.state is JobState.FAILED
    assert [attempt.status for attempt in record.attempts] == [500]


def test_a_replayed_failure_arrives_under_its_first_id(redis_url):
    with receiver(answers_in_turn(answers(500), answers(200))) as server:
        bench = DeliveryBench(redis_url, [server.port], schedule_s=(0,))
        endpoint = bench.register(server.url(), *TYPES)
        bench.end_a_job()
        bench.deliver_due()

        (replayed,) = bench.log.replay_failed(endpoint.id, DEFAULT_TENANT)
        bench.deliver_due()

        first, second = server.take(2)
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == "evt_1"
    assert bench.state(replayed) is JobState.COMPLETED
