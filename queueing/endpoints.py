"""Endpoints: a tenant's registered webhook receivers, their secrets and how they behave.

EndpointStore is the verbs over Redis; one verb that writes is one script (scripts/endpoint_*.lua).
An endpoint is disabled by its owner, or by what deliveries found: then its reason says why, no new
event is queued for it, and what was queued is given up. One that fails again and again is paused
for a while instead. Knows no HTTP beyond the spelling of a URL. Verbs raise StoreUnavailable.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis

from queueing import keys
from queueing.clock import Clock
from queueing.errors import FailureCode, RequestError
from queueing.job import new_id
from queueing.pages import Page, PageQuery, read_page
from queueing.queue import QueueLimits
from queueing.store import Script, translated_errors
from queueing.webhook_signature import WebhookSecret

MAX_ENDPOINTS = 32
OVERLAP_MS = 86_400_000


class EventType(StrEnum):
    """What can be told to an endpoint; event_of in scripts/_events.lua makes these names."""

    JOB_COMPLETED = "job.completed"
    JOB_FAILED = "job.failed"
    JOB_EXPIRED = "job.expired"
    JOB_CANCELLED = "job.cancelled"
    JOB_DEAD = "job.dead"
    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"
    RESPONSE_COMPLETED = "response.completed"
    RESPONSE_FAILED = "response.failed"
    RESPONSE_CANCELLED = "response.cancelled"
    RESPONSE_INCOMPLETE = "response.incomplete"


@dataclass(frozen=True, slots=True)
class EndpointForm:
    """What an owner decides of an endpoint; None leaves it as it is."""

    name: str | None = None
    url: str | None = None
    event_types: tuple[EventType, ...] | None = None
    is_enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A receiver as its owner sees it. Instants are seconds of the store's clock.

    `failures` counts failed attempts since the last success; deliveries wait for `paused_until_s`.
    """

    id: str
    tenant: str
    name: str
    url: str
    event_types: tuple[str, ...]
    created_s: float
    updated_s: float
    secret_hint: str
    failures: int
    failing_since_s: float | None
    paused_until_s: float | None
    disabled_s: float | None
    disabled_reason: str | None

    @property
    def is_enabled(self) -> bool:
        """True while it gets events."""
        return self.disabled_s is None


@dataclass(frozen=True, slots=True)
class Receiver:
    """An endpoint as a delivery needs it now: where, signed by whom, and how long to wait first."""

    url: str
    signers: tuple[WebhookSecret, ...]
    wait_s: float
    is_enabled: bool


class EndpointStore:
    """The endpoints of one installation. Thread-safe: it holds nothing but the client."""

    def __init__(
        self,
        client: "redis.Redis",
        limits: QueueLimits | None = None,
        *,
        prefix: str = "{pm}:",
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._limits_json = (limits or QueueLimits()).as_json()
        self._put = Script(client, "endpoint_put", prefix, allow_oom=False)
        self._rotate = Script(client, "endpoint_rotate", prefix, allow_oom=True)
        self._delete = Script(client, "endpoint_delete", prefix, allow_oom=True)

    def create(self, tenant: str, form: EndpointForm) -> tuple[Endpoint, WebhookSecret]:
        """Register an endpoint; its secret is not told again. Raises RequestError at the limit."""
        endpoint_id, secret = new_id("whep_"), WebhookSecret.generate()
        fields = _fields_of(form) | {"secret": secret.text, "is_new": True}
        if self._put_fields(endpoint_id, tenant, fields) == "full":
            raise RequestError(
                FailureCode.INVALID_REQUEST, f"there are {MAX_ENDPOINTS} endpoints already"
            )
        return self._existing(endpoint_id, tenant), secret

    def get(self, endpoint_id: str, tenant: str) -> Endpoint | None:
        """Return an endpoint; None for an unknown id and for another tenant's."""
        return self._fetch([endpoint_id], tenant)[0]

    def page(self, tenant: str, query: PageQuery) -> Page[Endpoint]:
        """Return some of a tenant's endpoints; raises RequestError for an unknown cursor."""
        index = keys.ENDPOINTS.of(self._prefix, tenant=tenant)
        return read_page(self._client, index, query, lambda ids: self._fetch(ids, tenant))

    def num_disabled(self) -> int:
        """Count the endpoints of all tenants that deliveries have disabled."""
        with translated_errors():
            return int(self._client.zcard(keys.DISABLED_ENDPOINTS.of(self._prefix)))

    def disabled_page(self, query: PageQuery) -> Page[Endpoint]:
        """Return some of those, the last disabled first, for the operator."""
        index = keys.DISABLED_ENDPOINTS.of(self._prefix)
        return read_page(self._client, index, query, lambda ids: self._fetch(ids, None))

    def update(self, endpoint_id: str, tenant: str, form: EndpointForm) -> Endpoint | None:
        """Change what the form names; enabling forgets how the endpoint behaved before."""
        if self._put_fields(endpoint_id, tenant, _fields_of(form)) == "unknown":
            return None
        return self.get(endpoint_id, tenant)

    def rotate(self, endpoint_id: str, tenant: str, *, overlap_ms: int) -> WebhookSecret | None:
        """Return a new secret; the old one signs beside it for `overlap_ms`."""
        secret = WebhookSecret.generate()
        args = (endpoint_id, tenant, secret.text, overlap_ms)
        return secret if self._rotate(*self._head(), *args) else None

    def delete(self, endpoint_id: str, tenant: str) -> bool:
        """Forget an endpoint; False when there is none."""
        return bool(self._delete(*self._head(), endpoint_id, tenant))

    def receiver(self, endpoint_id: str) -> Receiver | None:
        """Return where a delivery goes now; None once the endpoint was deleted."""
        key = keys.ENDPOINT.of(self._prefix, id=endpoint_id)
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.time()
            pipeline.hgetall(key)
            (seconds, microseconds), fields = pipeline.execute()
        if not fields:
            return None
        now_ms = self._clock.now_ms() if self._clock else seconds * 1000 + microseconds // 1000
        secrets = [fields["secret"]]
        if int(fields.get("old_secret_until_ms", "0")) > now_ms:
            secrets.append(fields["old_secret"])
        return Receiver(
            url=fields["url"],
            signers=tuple(WebhookSecret.parse(text) for text in secrets),
            wait_s=max(0, int(fields.get("paused_until_ms", "0")) - now_ms) / 1000,
            is_enabled="disabled_ms" not in fields,
        )

    def _head(self) -> tuple[str, str]:
        return (str(self._clock.now_ms()) if self._clock else "", self._limits_json)

    def _put_fields(self, endpoint_id: str, tenant: str, fields: dict[str, Any]) -> str:
        named = {"id": endpoint_id, "tenant": tenant, "max_endpoints": MAX_ENDPOINTS}
        reply: str = self._put(*self._head(), json.dumps(named | fields))
        return reply

    def _existing(self, endpoint_id: str, tenant: str) -> Endpoint:
        endpoint = self.get(endpoint_id, tenant)
        assert endpoint is not None, "it was just registered"
        return endpoint

    def _fetch(self, ids: Sequence[str], tenant: str | None) -> list[Endpoint | None]:
        """Read endpoints; None for those there are not, or not of this tenant if one is given."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for endpoint_id in ids:
                pipeline.hgetall(keys.ENDPOINT.of(self._prefix, id=endpoint_id))
            found = pipeline.execute()
        return [
            _endpoint_of(endpoint_id, fields)
            if fields and tenant in (None, fields["tenant"])
            else None
            for endpoint_id, fields in zip(ids, found, strict=True)
        ]


# The values are what the script's JSON holds: text, or a flag.
def _fields_of(form: EndpointForm) -> dict[str, Any]:
    given = {
        "name": form.name,
        "url": form.url,
        "event_types": None if form.event_types is None else json.dumps(form.event_types),
        "is_enabled": form.is_enabled,
    }
    return {name: value for name, value in given.items() if value is not None}


def _endpoint_of(endpoint_id: str, fields: dict[str, str]) -> Endpoint:
    def seconds(name: str) -> float | None:
        return int(fields[name]) / 1000 if name in fields else None

    return Endpoint(
        id=endpoint_id,
        tenant=fields["tenant"],
        name=fields["name"],
        url=fields["url"],
        event_types=tuple(json.loads(fields["event_types"])),
        created_s=int(fields["created_ms"]) / 1000,
        updated_s=int(fields["updated_ms"]) / 1000,
        secret_hint=f"whsec_...{fields['secret'][-4:]}",
        failures=int(fields.get("failures", "0")),
        failing_since_s=seconds("failing_since_ms"),
        paused_until_s=seconds("paused_until_ms"),
        disabled_s=seconds("disabled_ms"),
        disabled_reason=fields.get("disabled_reason"),
    )
