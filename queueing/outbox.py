"""The outbox: what waits to be told to a webhook's receiver, as the request of a job.

A delivery is queued in WEBHOOK_QUEUE by the script that ends the job it tells of (put_events in
scripts/_events.lua), so an end without its event can't exist. The event's id is one and the same on
every attempt and at every receiver. The body is made once: what is stored is what is signed and
sent, byte for byte. Knows no HTTP.

Fields of the request (absent where they say so):

    body          the event's JSON, as text
    event_id      evt_..., the webhook-id
    url           whom a job named; absent for an endpoint
    tenant        whose job named it, and whose secret signs; absent for an endpoint
    endpoint_id   whep_..., whose URL and secrets are looked up at each attempt; absent for a URL
    is_test       a sample: one attempt, also when the endpoint is disabled; absent if not
    attempts      made so far; absent for none
    blocked       how many of them found the address forbidden; absent for none
"""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one receiver, with its progress."""

    body: str
    event_id: str
    url: str | None = None
    tenant: str | None = None
    endpoint_id: str | None = None
    is_test: bool = False
    attempts: int = 0
    blocked: int = 0


def encode_delivery(delivery: Delivery) -> str:
    """Write what the next attempt reads."""
    fields = {name: value for name, value in asdict(delivery).items() if value}
    return json.dumps(fields, separators=(",", ":"))


def decode_delivery(request: str) -> Delivery:
    """Read a delivery as the script or an earlier attempt left it."""
    return Delivery(**json.loads(request))
