"""One attempt to hand an event to its receiver: look-up, connection, POST, status.

Must not know queues, schedules or jobs. What a receiver can do to us is bounded here: the whole
attempt, look-up and handshake included, ends by one deadline however slowly bytes drip; at most
MAX_ANSWER_BYTES are read, never decompressed and never kept; redirects are not followed; proxies of
the environment are not used; the connection goes to an address that was checked.
"""

import calendar
import contextlib
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum

import httpcore

from queueing.clock import Clock
from queueing.errors import RequestError
from queueing.webhook_signature import WebhookSecret, signed_headers
from queueing.webhook_url import (
    Resolver,
    UrlPolicy,
    WebhookTarget,
    look_up,
    resolve_allowed,
    webhook_target,
)
from workers.pinned_connection import Deadline, PinnedBackend

MAX_ANSWER_BYTES = 65_536
MAX_ADDRESSES = 4

_RESOLVER_THREADS = 16
# Reading a little of the answer spares the receiver a reset; the status is what counts.
_DRAIN_S = 1.0


class AttemptResult(StrEnum):
    """How an attempt ended; the label of its metric."""

    SUCCESS = "2xx"
    REDIRECT = "3xx"
    REFUSED = "4xx"
    SERVER_ERROR = "5xx"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    TLS = "tls"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one attempt. `retry_after_s` is the receiver's wish, when it had one."""

    result: AttemptResult
    duration_s: float
    status: int | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """What is sent: the id that stays the same, the bytes that are signed, and who signs them."""

    id: str
    body: bytes
    signers: tuple[WebhookSecret, ...]


class WebhookClient:
    """Makes attempts; safe from many threads, each attempt on a connection of its own."""

    def __init__(
        self,
        policy: UrlPolicy,
        timeout_s: float,
        clock: Clock,
        *,
        tls: ssl.SSLContext | None = None,
        resolver: Resolver = look_up,
    ) -> None:
        self._policy = policy
        self._timeout_s = timeout_s
        self._clock = clock
        self._tls = tls or ssl.create_default_context()
        self._resolver = resolver
        # The system's resolver can't be told how long it may take, so it is waited for elsewhere.
        self._lookups = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="webhook-lookup")

    def post(self, url: str, event: OutgoingEvent) -> Attempt:
        """Send the event once; every way to fail is an Attempt, not an exception."""
        begun = time.monotonic()
        result, status, retry_after_s = AttemptResult.CONNECTION, None, None
        try:
            status, retry_after_s = self._exchange(url, event, Deadline(self._timeout_s))
            result = _class_of(status)
        except RequestError:
            result = AttemptResult.BLOCKED
        except TimeoutError:
            result = AttemptResult.TIMEOUT
        except ssl.SSLError:
            result = AttemptResult.TLS
        except (OSError, httpcore.ProtocolError):
            result = AttemptResult.CONNECTION
        return Attempt(result, time.monotonic() - begun, status, retry_after_s)

    def close(self) -> None:
        """Let the look-up threads go."""
        self._lookups.shutdown(wait=False, cancel_futures=True)

    def _exchange(
        self, url: str, event: OutgoingEvent, deadline: Deadline
    ) -> tuple[int, float | None]:
        target = webhook_target(url, self._policy)
        lookup = self._lookups.submit(
            resolve_allowed, target.host, target.port, self._policy, self._resolver
        )
        addresses = lookup.result(timeout=deadline.remaining_s())[:MAX_ADDRESSES]
        backend = PinnedBackend(addresses, deadline, MAX_ANSWER_BYTES)
        headers = self._headers(target, event)
        with (
            _connection(target, self._tls, backend) as connection,
            connection.stream(
                "POST", _url(target), headers=headers, content=event.body
            ) as response,
        ):
            deadline.shorten(_DRAIN_S)
            _drain(response)
            return response.status, _retry_after_s(response, self._clock.now_ms() / 1000)

    def _headers(self, target: WebhookTarget, event: OutgoingEvent) -> list[tuple[str, str]]:
        timestamp_s = self._clock.now_ms() // 1000
        return [
            ("host", target.authority),
            ("content-type", "application/json"),
            ("user-agent", "promptmill"),
            ("accept-encoding", "identity"),
            ("connection", "close"),
            *signed_headers(event.signers, event.id, timestamp_s, event.body).items(),
        ]


def _url(target: WebhookTarget) -> httpcore.URL:
    return httpcore.URL(
        scheme=target.scheme, host=target.host, port=target.port, target=target.target
    )


def _connection(
    target: WebhookTarget, tls: ssl.SSLContext, backend: PinnedBackend
) -> httpcore.HTTPConnection:
    """Return a connection for one request; httpcore does no redirects, proxies or decompression."""
    return httpcore.HTTPConnection(_url(target).origin, ssl_context=tls, network_backend=backend)


def _drain(response: httpcore.Response) -> None:
    # The status has been read and stands; whatever ends the rest of the answer changes nothing.
    with contextlib.suppress(OSError, httpcore.ProtocolError):
        for _ in response.iter_stream():
            pass


def _class_of(status: int) -> AttemptResult:
    classes = {2: AttemptResult.SUCCESS, 3: AttemptResult.REDIRECT, 4: AttemptResult.REFUSED}
    return classes.get(status // 100, AttemptResult.SERVER_ERROR)


def _retry_after_s(response: httpcore.Response, now_s: float) -> float | None:
    """Read Retry-After, seconds or a date; None when there is none that makes sense."""
    values = [value for name, value in response.headers if name.lower() == b"retry-after"]
    text = values[0].decode("latin-1").strip() if values else ""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, calendar.timegm(parsedate_to_datetime(text).utctimetuple()) - now_s)
    except (ValueError, OverflowError):  # no date, or one that no calendar holds
        return None
