"""A small receiver of webhooks for people: verifies what arrives and tells of it.

Owns an HTTP server on loopback. Knows the signature and nothing else of promptmill; what it shows
of an event is what thin payloads hold: ids and a type.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from queueing.clock import Clock
from queueing.webhook_signature import SignatureError, WebhookSecret, verify

_MAX_BODY_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Heard:
    """One request: what it said, or why it was refused."""

    webhook_id: str
    event_type: str = ""
    object_id: str = ""
    problem: str | None = None


class WebhookListener:
    """Answers 204 to what is signed by one of its secrets, else 400, and tells of both."""

    def __init__(
        self, port: int, secrets: list[WebhookSecret], clock: Clock, tell: Callable[[Heard], None]
    ) -> None:
        """Listen at once; `tell` is called by a thread per request."""
        self._secrets = secrets
        self._clock = clock
        self._tell = tell
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(_length(self.headers))
                heard = listener.hear(_lower(self.headers), body)
                self.send_response(204 if heard.problem is None else 400)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing: `tell` does."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        """Where webhooks are to be sent."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def serve(self) -> None:
        """Serve until closed."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Let serve return and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def hear(self, headers: Mapping[str, str], body: bytes) -> Heard:
        """Verify one request and tell of it. `headers` have lower-case names."""
        heard = self._verified(headers, body)
        self._tell(heard)
        return heard

    def _verified(self, headers: Mapping[str, str], body: bytes) -> Heard:
        webhook_id = headers.get("webhook-id", "")
        problem = "no secret to verify with"
        for secret in self._secrets:
            try:
                verify(secret, headers, body, self._clock.now_ms() / 1000)
            except SignatureError as error:
                problem = str(error)
            else:
                event = json.loads(body)
                return Heard(webhook_id, event["type"], event["data"]["id"])
        return Heard(webhook_id, problem=problem)


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _length(headers: Message) -> int:
    text = headers.get("Content-Length", "0")
    return min(int(text), _MAX_BODY_BYTES) if text.isdecimal() else 0
