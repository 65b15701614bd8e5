"""The outbox: what waits to be told to a webhook's receiver, as the request of a job.

A delivery is queued in WEBHOOK_QUEUE by the script that ends the job it tells of (put_webhook in
scripts/_shared.lua), so an end without its event can't exist. Its job id is the event's id, one and
the same on every attempt. The body is made once: what is stored is what is signed and sent, byte
for byte. Knows no HTTP.

Fields of the request: url, body (the event's JSON as text), attempts (made so far, 0 if absent),
blocked (how many of them found the address forbidden, 0 if absent).
"""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one receiver, with its progress."""

    url: str
    body: str
    attempts: int = 0
    blocked: int = 0

    @property
    def receiver(self) -> str:
        """Who is asked: scheme, host and port as the URL has them."""
        return "/".join(self.url.split("/", 3)[:3]).partition("?")[0]


def encode_delivery(delivery: Delivery) -> str:
    """Write what the next attempt reads."""
    return json.dumps(asdict(delivery), separators=(",", ":"))


def decode_delivery(request: str) -> Delivery:
    """Read a delivery as the script or an earlier attempt left it."""
    return Delivery(**json.loads(request))
