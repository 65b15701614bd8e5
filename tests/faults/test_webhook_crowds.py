"""F25 at its full size: two hundred events for a receiver that fails each of them first."""

import socket
import ssl
import threading
from itertools import pairwise

import pytest

from queueing.endpoints import EndpointForm, EventType
from queueing.job import DEFAULT_TENANT, JobState
from queueing.webhook_signature import WebhookSecret, verify
from tests.support.deliveries import SECRET
from tests.support.delivery_crowd import (
    FIRST_DELAY_S,
    TIMEOUT_S,
    DeliveryCrowd,
    Told,
    results_of,
)
from tests.support.receiver import (
    IMPOSTOR,
    Behaviour,
    Exchange,
    answers,
    client_tls,
    drips_body,
    floods_headers,
    hangs,
    receiver,
    resets,
    sends_a_gzip_bomb,
    server_tls,
    speaks_no_http,
)

NUM_EVENTS = 200
RETRY_AFTER_S = 8
# What a busy machine takes to see that time is up.
MARGIN_S = 0.5
MAX_TAKEN_BYTES = 2**20

pytestmark = [pytest.mark.soak, pytest.mark.fault("F25"), pytest.mark.timeout(900)]


def drips_a_head(exchange: Exchange) -> None:
    """Never come to the end of the headers, a byte a second."""
    exchange.drip(b"HTTP/1.1 200 OK\r\nx-drip: " + b"1" * 1_000, pause_s=1.0)


FAILURES: dict[str, tuple[Behaviour, str]] = {
    "500": (answers(500), "5xx"),
    "404": (answers(404), "4xx"),
    "hang": (hangs, "timeout"),
    "drip": (drips_a_head, "timeout"),
    "endless headers": (floods_headers, "connection"),
    "reset": (resets, "connection"),
    "no http": (speaks_no_http, "connection"),
}
HOSTILE_BODIES = {"drip": drips_body, "gzip bomb": sends_a_gzip_bomb}


@pytest.mark.parametrize(("behaviour", "result"), FAILURES.values(), ids=FAILURES)
def test_every_event_comes_again_after_its_receiver_failed_it(
    redis_url, record_property, behaviour, result
):
    with receiver(at_first(behaviour)) as server:
        crowd = DeliveryCrowd(redis_url, server.port)
        events = crowd.end_jobs(NUM_EVENTS, server.url())

        with crowd.delivering():
            attempts = crowd.await_attempts(2 * NUM_EVENTS)

        told = crowd.told(server)
    longest_s = max(attempt.duration_s for attempt in attempts)
    record_property("longest_attempt_s", round(longest_s, 3))
    assert [one.event_id for one in told] == events
    assert {len(one.requests) for one in told} == {2}
    assert all(is_one_event(one) for one in told)
    assert results_of(attempts) == {result: NUM_EVENTS, "2xx": NUM_EVENTS}
    assert longest_s < TIMEOUT_S + MARGIN_S
    assert crowd.num_ended(JobState.COMPLETED) == NUM_EVENTS


def test_every_receiver_that_asks_to_wait_is_left_alone_so_long(redis_url, record_property):
    busy = answers(429, retry_after=str(RETRY_AFTER_S))
    with receiver(at_first(busy)) as server:
        crowd = DeliveryCrowd(redis_url, server.port)

        with crowd.delivering():
            # Not all at once: who asks all to return at one instant gets them as fast as may be.
            events = crowd.end_jobs(NUM_EVENTS, server.url(), pause_s=0.1)
            attempts = crowd.await_attempts(2 * NUM_EVENTS)

        told = crowd.told(server)
    off_s = max(abs(one.requests[1].at - one.requests[0].at - RETRY_AFTER_S) for one in told)
    record_property("furthest_off_s", round(off_s, 3))
    assert [one.event_id for one in told] == events
    assert all(is_one_event(one) for one in told)
    assert results_of(attempts) == {"4xx": NUM_EVENTS, "2xx": NUM_EVENTS}
    assert off_s <= 1.0


def test_no_redirect_is_followed_and_each_is_a_failure(redis_url):
    with receiver() as elsewhere, receiver(at_first(moved_to(elsewhere.url()))) as server:
        crowd = DeliveryCrowd(redis_url, server.port)
        events = crowd.end_jobs(NUM_EVENTS, server.url())

        with crowd.delivering():
            attempts = crowd.await_attempts(2 * NUM_EVENTS)

        told = crowd.told(server)
        num_followed = elsewhere.arrivals.qsize()
    assert num_followed == 0
    assert [one.event_id for one in told] == events
    assert all(is_one_event(one) for one in told)
    assert results_of(attempts) == {"3xx": NUM_EVENTS, "2xx": NUM_EVENTS}


@pytest.mark.parametrize("behaviour", HOSTILE_BODIES.values(), ids=HOSTILE_BODIES)
def test_a_hostile_body_after_success_costs_no_event_a_second_attempt(
    redis_url, record_property, behaviour
):
    with receiver(behaviour) as server:
        crowd = DeliveryCrowd(redis_url, server.port)
        events = crowd.end_jobs(NUM_EVENTS, server.url())

        with crowd.delivering():
            attempts = crowd.await_attempts(NUM_EVENTS)

        told = crowd.told(server)
    longest_s = max(attempt.duration_s for attempt in attempts)
    record_property("longest_attempt_s", round(longest_s, 3))
    assert [one.event_id for one in told] == events
    assert {len(one.requests) for one in told} == {1}
    assert results_of(attempts) == {"2xx": NUM_EVENTS}
    assert longest_s < TIMEOUT_S + MARGIN_S


def test_of_an_endless_body_little_more_than_the_buffers_is_taken(redis_url, record_property):
    flood = CountedFlood()
    with receiver(flood) as server:
        crowd = DeliveryCrowd(redis_url, server.port)
        crowd.end_jobs(NUM_EVENTS, server.url())

        with crowd.delivering():
            attempts = crowd.await_attempts(NUM_EVENTS)

    record_property("most_taken_bytes", max(flood.taken))
    assert results_of(attempts) == {"2xx": NUM_EVENTS}
    # Of these the client reads 64 KiB (test_pinned_connection); the rest lies in the kernel.
    assert max(flood.taken) < MAX_TAKEN_BYTES


def test_a_certificate_that_is_not_trusted_holds_events_back_until_it_is(redis_url):
    certificate = ChangingCertificate()
    with receiver(tls=certificate.context) as server:
        crowd = DeliveryCrowd(redis_url, server.port, client_tls())
        events = crowd.end_jobs(NUM_EVENTS, server.url("receiver.example"))

        with crowd.delivering():
            refused = crowd.await_attempts(NUM_EVENTS)
            arrived_meanwhile = crowd.told(server)
            certificate.mend()
            crowd.await_end(JobState.COMPLETED, NUM_EVENTS)

        told = crowd.told(server)
    assert results_of(refused) == {"tls": NUM_EVENTS}
    assert arrived_meanwhile == []
    assert [one.event_id for one in told] == events
    assert all(is_one_event(one) for one in told)


def test_a_closed_port_holds_events_back_until_it_opens(redis_url):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        crowd = DeliveryCrowd(redis_url, port)
        events = crowd.end_jobs(NUM_EVENTS, f"http://127.0.0.1:{port}/in")
        with crowd.delivering():
            refused = crowd.await_attempts(NUM_EVENTS)
            closed.close()
            with receiver(port=port) as server:
                crowd.await_end(JobState.COMPLETED, NUM_EVENTS)

                told = crowd.told(server)
    assert results_of(refused) == {"connection": NUM_EVENTS}
    assert [one.event_id for one in told] == events
    assert all(is_one_event(one) for one in told)


def test_gone_disables_the_endpoint_and_all_it_missed_can_be_sent_again(redis_url, record_property):
    moved_back = threading.Event()
    with receiver(gone_until(moved_back)) as server:
        crowd = DeliveryCrowd(redis_url, server.port)
        form = EndpointForm("receiver", server.url(), (EventType.JOB_COMPLETED,))
        endpoint, secret = crowd.endpoints.create(DEFAULT_TENANT, form)
        events = crowd.end_jobs(NUM_EVENTS)
        with crowd.delivering():
            crowd.await_end(JobState.FAILED, NUM_EVENTS)
            disabled = crowd.endpoints.get(endpoint.id, DEFAULT_TENANT)
            refused = crowd.told(server)

            moved_back.set()
            crowd.endpoints.update(endpoint.id, DEFAULT_TENANT, EndpointForm(is_enabled=True))
            crowd.log.replay_failed(endpoint.id, DEFAULT_TENANT)
            crowd.await_end(JobState.COMPLETED, NUM_EVENTS)

        told = crowd.told(server)
    record_property("posts_before_disabled", len(refused))
    assert disabled is not None
    assert disabled.disabled_reason == "the receiver is gone (410)"
    assert {len(one.requests) for one in refused} == {1}
    assert [one.event_id for one in told] == events
    assert all(is_one_event(one, secret) for one in told)


def at_first(behaviour: Behaviour) -> Behaviour:
    """Fail every event once, and take it when it comes again."""
    seen: set[str] = set()
    lock = threading.Lock()

    def behave(exchange: Exchange) -> None:
        event_id = exchange.received.headers["webhook-id"]
        with lock:
            is_new = event_id not in seen
            seen.add(event_id)
        (behaviour if is_new else answers(204))(exchange)

    return behave


def moved_to(url: str) -> Behaviour:
    return answers(302, location=url)


def gone_until(moved_back: threading.Event) -> Behaviour:
    return lambda exchange: answers(204 if moved_back.is_set() else 410)(exchange)


class CountedFlood:
    """Succeeds with an endless body, and counts what each connection takes of it."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def __call__(self, exchange: Exchange) -> None:
        exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        exchange.say(b"HTTP/1.1 200 OK\r\n\r\n")
        num_bytes = 0
        try:
            while not exchange.stopped.is_set():
                num_bytes += exchange.connection.send(b"x" * 4_096)
        finally:
            self.taken.append(num_bytes)


class ChangingCertificate:
    """A server's TLS that shows an impostor's certificate until it is mended."""

    def __init__(self) -> None:
        self.context = server_tls(IMPOSTOR)
        self._good = server_tls()
        self._is_mended = threading.Event()
        self.context.sni_callback = self._choose

    def mend(self) -> None:
        self._is_mended.set()

    def _choose(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        if self._is_mended.is_set():
            connection.context = self._good


def is_one_event(told: Told, secret: WebhookSecret = SECRET) -> bool:
    """Say whether all requests brought the same bytes, each signed anew at its own time."""
    verified = {
        verify(secret, request.headers, request.body, timestamp_s)
        for request, timestamp_s in zip(told.requests, told.timestamps_s, strict=True)
    }
    bodies = {request.body for request in told.requests}
    is_spaced = all(
        later - earlier >= FIRST_DELAY_S - 1 for earlier, later in pairwise(told.timestamps_s)
    )
    return verified == {told.event_id} and len(bodies) == 1 and is_spaced
