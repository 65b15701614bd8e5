import time
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueing.clock import ManualClock
from queueing.webhook_signature import WebhookSecret
from queueing.webhook_url import UrlPolicy
from tests.support.receiver import (
    Receiver,
    answers,
    client_tls,
    drips_body,
    drips_headers,
    floods_body,
    floods_headers,
    hangs,
    receiver,
    resets,
    sends_a_gzip_bomb,
    server_tls,
    speaks_no_http,
)
from workers.webhook_client import Attempt, AttemptResult, OutgoingEvent, WebhookClient

TIMEOUT_S = 0.6
# A drip would take 20 s and more; a busy machine may be a little late.
MARGIN_S = 3.0
EVENT = OutgoingEvent("evt_1", b'{"id":"evt_1"}', (WebhookSecret(b"k" * 24),))
NOW_MS = 1_700_000_000_000


def client_of(server: Receiver, *, timeout_s: float = 20.0, **options) -> WebhookClient:
    policy = UrlPolicy.of(
        allow_http=True, allow_networks=["127.0.0.0/8"], allowed_ports=[server.port]
    )
    return WebhookClient(policy, timeout_s, ManualClock(NOW_MS), **options)


def post(server: Receiver, url: str | None = None, **options) -> Attempt:
    client = client_of(server, **options)
    try:
        return client.post(url or server.url(), EVENT)
    finally:
        client.close()


def test_the_bytes_that_arrive_are_the_bytes_that_were_given():
    with receiver() as server:
        attempt = post(server)

        (received,) = server.take(1)
    assert attempt.result is AttemptResult.SUCCESS
    assert attempt.status == 200
    assert received.request_line == "POST /in HTTP/1.1"
    assert received.body == EVENT.body
    assert received.headers["host"] == f"127.0.0.1:{server.port}"
    assert received.headers["webhook-id"] == "evt_1"
    assert received.headers["webhook-timestamp"] == str(NOW_MS // 1000)
    assert received.headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_only_2xx_is_success(status):
    with receiver(answers(status, b"")) as server:
        assert post(server).result is AttemptResult.SUCCESS


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (300, AttemptResult.REDIRECT),
        (304, AttemptResult.REDIRECT),
        (400, AttemptResult.REFUSED),
        (404, AttemptResult.REFUSED),
        (410, AttemptResult.REFUSED),
        (500, AttemptResult.SERVER_ERROR),
        (503, AttemptResult.SERVER_ERROR),
        (999, AttemptResult.SERVER_ERROR),
    ],
)
def test_every_other_status_is_a_failure_of_its_class(status, result):
    with receiver(answers(status, b"")) as server:
        attempt = post(server)

    assert (attempt.result, attempt.status) == (result, status)


def test_a_redirect_is_not_followed():
    with receiver() as inner, receiver(answers(302, location=inner.url())) as server:
        attempt = post(server)

        assert attempt.result is AttemptResult.REDIRECT
        assert inner.arrivals.empty()


@pytest.mark.parametrize("behaviour", [hangs, drips_headers])
def test_an_attempt_ends_in_time_whatever_the_drip(behaviour):
    with receiver(behaviour) as server:
        begun = time.monotonic()
        attempt = post(server, timeout_s=TIMEOUT_S)

    assert attempt.result is AttemptResult.TIMEOUT
    assert TIMEOUT_S <= time.monotonic() - begun < TIMEOUT_S + MARGIN_S


def test_a_tls_handshake_that_hangs_ends_in_time():
    with receiver() as server:
        https = server.url().replace("http:", "https:")
        attempt = post(server, https, timeout_s=TIMEOUT_S)

    assert attempt.result is AttemptResult.TIMEOUT


@pytest.mark.parametrize("behaviour", [drips_body, floods_body, sends_a_gzip_bomb])
def test_the_status_counts_and_a_hostile_body_is_left_where_it_is(behaviour):
    with receiver(behaviour) as server:
        begun = time.monotonic()
        attempt = post(server)

    assert attempt.result is AttemptResult.SUCCESS
    assert time.monotonic() - begun < 1 + MARGIN_S


@pytest.mark.parametrize(
    "behaviour", [floods_headers, resets, speaks_no_http, answers(101)], ids=str
)
def test_what_is_no_answer_is_a_connection_failure(behaviour):
    with receiver(behaviour) as server:
        assert post(server).result is AttemptResult.CONNECTION


def test_a_closed_port_is_a_connection_failure():
    with receiver() as server:
        pass

    assert post(server).result is AttemptResult.CONNECTION


def test_a_name_that_does_not_resolve_is_a_connection_failure():
    def no_such_name(_host, _port):
        raise OSError("no such name")

    with receiver() as server:
        attempt = post(server, server.url("receiver.example"), resolver=no_such_name)

    assert attempt.result is AttemptResult.CONNECTION


def test_a_resolver_that_hangs_is_not_waited_for_longer_than_the_attempt():
    with receiver() as server:
        attempt = post(
            server,
            server.url("receiver.example"),
            timeout_s=TIMEOUT_S,
            resolver=lambda _host, _port: [str(server.stopped.wait(20))],
        )

    assert attempt.result is AttemptResult.TIMEOUT
    assert attempt.duration_s < TIMEOUT_S + MARGIN_S


def test_tls_is_verified_under_the_name_while_the_address_is_pinned():
    with receiver(tls=server_tls()) as server:
        attempt = post(
            server,
            server.url("receiver.example"),
            tls=client_tls(),
            resolver=lambda _host, _port: ["127.0.0.1"],
        )

        (received,) = server.take(1)
    assert attempt.result is AttemptResult.SUCCESS
    assert received.headers["host"] == f"receiver.example:{server.port}"


@pytest.mark.parametrize(
    ("host", "trusted"), [("receiver.example", False), ("other.example", True)]
)
def test_a_certificate_that_is_not_trusted_or_names_another_host_is_refused(host, trusted):
    with receiver(tls=server_tls()) as server:
        attempt = post(
            server,
            server.url(host),
            tls=client_tls() if trusted else None,
            resolver=lambda _host, _port: ["127.0.0.1"],
        )

        assert attempt.result is AttemptResult.TLS
        assert server.arrivals.empty()


def test_the_next_address_is_tried_when_one_does_not_answer():
    with receiver() as server:
        attempt = post(
            server,
            server.url("receiver.example"),
            resolver=lambda _host, _port: ["127.0.0.9", "127.0.0.1"],
        )

    assert attempt.result is AttemptResult.SUCCESS


def test_a_name_that_moved_inside_is_blocked_at_delivery():
    # given: public when the job was submitted, the metadata service now
    with receiver() as server:
        attempt = post(
            server,
            server.url("rebound.example"),
            resolver=lambda _host, _port: ["169.254.169.254"],
        )

    assert attempt == Attempt(AttemptResult.BLOCKED, attempt.duration_s)


def test_a_name_is_looked_up_once_so_it_cannot_change_between_check_and_connection():
    answers_given: list[str] = []

    def resolver(_host, _port):
        answers_given.append("127.0.0.1" if not answers_given else "169.254.169.254")
        return [answers_given[-1]]

    with receiver() as server:
        attempt = post(server, server.url("rebound.example"), resolver=resolver)

    assert attempt.result is AttemptResult.SUCCESS
    assert answers_given == ["127.0.0.1"]


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    with receiver() as proxy, receiver() as server:
        monkeypatch.setenv("http_proxy", proxy.url())
        monkeypatch.setenv("all_proxy", proxy.url())
        attempt = post(server)

        assert attempt.result is AttemptResult.SUCCESS
        assert proxy.arrivals.empty()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:13:19 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("Tue, 14 Nov 99999 22:14:20 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", None),
        ("1 Jan 99999999999999999999 00:00", None),
        ("9" * 400, inf),
    ],
)
def test_retry_after_is_read_as_seconds_and_as_a_date(value, seconds):
    with receiver(answers(429, retry_after=value)) as server:
        assert post(server).retry_after_s == seconds


@st.composite
def raw_answers(draw):
    """Draw what a receiver might say: anything, or an answer with something odd in it."""
    line = draw(st.sampled_from([b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/2 ", b"ICY "]))
    status = draw(
        st.sampled_from([b"200 x", b"429", b"101 x", b"100 x", b"000 x", b"999 x", b"-1 x"])
    )
    name = draw(st.sampled_from([b"retry-after", b"content-length", b"transfer-encoding", b"a"]))
    value = draw(st.binary(max_size=30) | st.sampled_from([b"-1", b"chunked", b"9" * 5_000]))
    head = line + status + b"\r\n" + name + b": " + value + b"\r\n\r\n"
    return draw(st.sampled_from([head, head + draw(st.binary(max_size=40))]) | st.binary())


def test_nothing_a_receiver_says_is_more_than_a_failed_attempt():
    said: list[bytes] = []
    with receiver(lambda exchange: exchange.say(said[-1])) as server:
        client = client_of(server)

        @given(raw_answers())
        @settings(max_examples=150, deadline=None)
        def hear(raw):
            said.append(raw)
            assert isinstance(client.post(server.url(), EVENT), Attempt)

        hear()
        client.close()


def test_every_url_that_is_accepted_can_be_called():
    with receiver() as server:
        client = client_of(server, resolver=lambda _host, _port: ["127.0.0.1"])

        @given(
            st.from_regex(rf"\Ahttp://[a-z][a-z0-9_.-]{{0,20}}:{server.port}[/?][!-~]{{0,40}}\Z")
        )
        @settings(max_examples=200, deadline=None)
        def call(url):
            assert client.post(url, EVENT).result in (AttemptResult.SUCCESS, AttemptResult.BLOCKED)

        call()
        client.close()
