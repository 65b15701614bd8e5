"""The contract of webhook endpoints and their deliveries: what is asked and what is told.

The endpoint's fields are OpenAI's, with ours after them: whether it is enabled and how it behaves.
Deliveries are our own. Knows nothing of HTTP. A signing secret is told by create and rotate alone.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from queueing.body import StrictModel
from queueing.deliveries import AttemptNote, DeliveryRecord
from queueing.endpoints import Endpoint, EventType
from queueing.job import JobState
from queueing.webhook_signature import WebhookSecret

DeliveryStatus = Literal["pending", "delivered", "failed"]

STATES_OF_STATUS: dict[DeliveryStatus, tuple[JobState, ...]] = {
    "pending": (JobState.QUEUED, JobState.RUNNING),
    "delivered": (JobState.COMPLETED,),
    "failed": (JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED, JobState.DEAD),
}

_Name = Annotated[str, Field(min_length=1, max_length=256, description="up to 256 characters")]
_Url = Annotated[str, Field(description="an https URL")]
# Not strict: the wire has the names, not the members.
_EventType = Annotated[EventType, Field(strict=False)]
_EventTypes = Annotated[
    list[_EventType],
    Field(min_length=1, max_length=len(EventType), description="a list of event types"),
]


class CreateBody(StrictModel):
    """The body of POST /v1/webhook_endpoints."""

    name: _Name
    url: _Url
    event_types: _EventTypes


class UpdateBody(StrictModel):
    """The body of POST /v1/webhook_endpoints/<id>: what is to change."""

    name: _Name | None = None
    url: _Url | None = None
    event_types: _EventTypes | None = None
    enabled: bool | None = None


class RotateBody(StrictModel):
    """The body of POST /v1/webhook_endpoints/<id>/rotate_secret."""

    keep_old_secret_active_for_24_hours: bool = False


class TestBody(StrictModel):
    """The body of POST /v1/webhook_endpoints/<id>/test."""

    event_type: _EventType


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class EndpointObject(_Answer):
    """An endpoint. Instants are whole seconds; null where something is not so."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: int
    updated_at: int
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str
    enabled: bool
    disabled_at: int | None
    disabled_reason: str | None
    failures: int
    failing_since: int | None
    paused_until: int | None


class EndpointWithSecret(EndpointObject):
    """An endpoint with the secret that is told this once."""

    signing_secret: str = Field(repr=False)


class TestResult(_Answer):
    """The endpoint's answer to a test; `success` says that there was one, whatever its status."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: Literal[True] = True


class AttemptObject(_Answer):
    """One attempt: a status code, or null and how the connection failed."""

    created_at: int
    result: str
    status_code: int | None
    duration_ms: int


class DeliveryObject(_Answer):
    """One event on its way to an endpoint, with its newest attempts."""

    id: str
    object: Literal["webhook_delivery"] = "webhook_delivery"
    webhook_endpoint_id: str
    event_id: str
    event_type: str
    status: DeliveryStatus
    created_at: int
    finished_at: int | None
    replayed_as: str | None
    attempts: list[AttemptObject]


def endpoint_object(endpoint: Endpoint) -> EndpointObject:
    """Say what is told of an endpoint."""
    return EndpointObject.model_validate(_endpoint_fields(endpoint))


def endpoint_with_secret(endpoint: Endpoint, secret: WebhookSecret) -> EndpointWithSecret:
    """Say the same with its new secret."""
    return EndpointWithSecret.model_validate(
        _endpoint_fields(endpoint) | {"signing_secret": secret.text}
    )


def delivery_object(endpoint_id: str, record: DeliveryRecord) -> DeliveryObject:
    """Say what is told of a delivery."""
    (status,) = (status for status, states in STATES_OF_STATUS.items() if record.state in states)
    return DeliveryObject(
        id=record.id,
        webhook_endpoint_id=endpoint_id,
        event_id=record.event_id,
        event_type=record.event_type,
        status=status,
        created_at=int(record.created_s),
        finished_at=_whole(record.finished_s),
        replayed_as=record.replayed_as,
        attempts=[_attempt_object(attempt) for attempt in record.attempts],
    )


def _endpoint_fields(endpoint: Endpoint) -> dict[str, object]:
    return {
        "id": endpoint.id,
        "created_at": int(endpoint.created_s),
        "updated_at": int(endpoint.updated_s),
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": list(endpoint.event_types),
        "signing_secret_hint": endpoint.secret_hint,
        "enabled": endpoint.is_enabled,
        "disabled_at": _whole(endpoint.disabled_s),
        "disabled_reason": endpoint.disabled_reason,
        "failures": endpoint.failures,
        "failing_since": _whole(endpoint.failing_since_s),
        "paused_until": _whole(endpoint.paused_until_s),
    }


def _attempt_object(attempt: AttemptNote) -> AttemptObject:
    return AttemptObject(
        created_at=int(attempt.at_s),
        result=attempt.result,
        status_code=attempt.status,
        duration_ms=attempt.duration_ms,
    )


def _whole(instant_s: float | None) -> int | None:
    return None if instant_s is None else int(instant_s)
