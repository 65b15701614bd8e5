"""Routes of webhook endpoints: register, change, rotate, test, list what was sent, send it again.

Owns the translation between HTTP and EndpointStore and DeliveryLog. Nothing is sent from here: a
test, too, is a delivery that a worker makes, so that no request of ours goes out from the API.
"""

import re
from time import monotonic

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel

from api.auth import current_tenant
from api.requests import read_object, read_query
from api.waiters import Waiters
from api.webhook_schemas import (
    STATES_OF_STATUS,
    CreateBody,
    RotateBody,
    TestBody,
    TestResult,
    UpdateBody,
    delivery_object,
    endpoint_object,
    endpoint_with_secret,
)
from queueing.body import validate
from queueing.deliveries import DeliveryLog, DeliveryRecord, Replay, ReplayAnswer
from queueing.endpoints import OVERLAP_MS, Endpoint, EndpointForm, EndpointStore, EventType
from queueing.errors import FailureCode, RequestError
from queueing.pages import Page, PageQuery
from queueing.webhook_signature import WebhookSecret
from queueing.webhook_url import UrlPolicy, check_webhook_url

_LIMIT = re.compile(r"[1-9][0-9]?|100")
_ENDPOINT = '/webhook_endpoints/<id("whep_"):endpoint_id>'
_DELIVERY = f'{_ENDPOINT}/deliveries/<id("dlv_"):delivery_id>'


class WebhookRoutes:
    """The handlers of /v1/webhook_endpoints. They hold nothing of a request."""

    def __init__(
        self,
        endpoints: EndpointStore,
        deliveries: DeliveryLog,
        policy: UrlPolicy,
        waiters: Waiters,
        test_wait_s: float,
    ) -> None:
        self._endpoints = endpoints
        self._deliveries = deliveries
        self._policy = policy
        self._waiters = waiters
        self._test_wait_s = test_wait_s

    def blueprint(self) -> Blueprint:
        """Return the routes, to be registered once."""
        blueprint = Blueprint("webhooks", __name__, url_prefix="/v1")
        for rule, view, method in (
            ("/webhook_endpoints", self.create, "POST"),
            ("/webhook_endpoints", self.list_endpoints, "GET"),
            ("/webhook_event_types", self.list_event_types, "GET"),
            (_ENDPOINT, self.retrieve, "GET"),
            (_ENDPOINT, self.update, "POST"),
            (_ENDPOINT, self.delete, "DELETE"),
            (f"{_ENDPOINT}/rotate_secret", self.rotate_secret, "POST"),
            (f"{_ENDPOINT}/test", self.test, "POST"),
            (f"{_ENDPOINT}/deliveries", self.list_deliveries, "GET"),
            (f"{_ENDPOINT}/replay_failed", self.replay_failed, "POST"),
            (_DELIVERY, self.retrieve_delivery, "GET"),
            (f"{_DELIVERY}/replay", self.replay, "POST"),
        ):
            blueprint.add_url_rule(rule, view_func=view, methods=[method])
        return blueprint

    def create(self) -> Response:
        """Register an endpoint; the answer alone holds its signing secret."""
        read_query()
        body = validate(CreateBody, read_object())
        check_webhook_url(body.url, self._policy, "url")
        form = EndpointForm(body.name, body.url, _unique(body.event_types))
        endpoint, secret = self._endpoints.create(current_tenant().name, form)
        return _answer(endpoint_with_secret(endpoint, secret))

    def list_endpoints(self) -> Response:
        """Return a page of endpoints, newest first."""
        page = self._endpoints.page(
            current_tenant().name, _page_query(read_query("after", "limit"))
        )
        return _listed(page, [endpoint_object(endpoint) for endpoint in page.items])

    def list_event_types(self) -> Response:
        """Return the events an endpoint can ask for."""
        read_query()
        return jsonify(object="list", data=[event_type.value for event_type in EventType])

    def retrieve(self, endpoint_id: str) -> Response:
        """Return one endpoint."""
        read_query()
        return _answer(endpoint_object(self._owned(endpoint_id)))

    def update(self, endpoint_id: str) -> Response:
        """Change what the body names; `enabled: true` ends a disabling, whatever its reason."""
        read_query()
        body = validate(UpdateBody, read_object())
        if body.url is not None:
            check_webhook_url(body.url, self._policy, "url")
        types = None if body.event_types is None else _unique(body.event_types)
        form = EndpointForm(body.name, body.url, types, body.enabled)
        endpoint = self._endpoints.update(endpoint_id, current_tenant().name, form)
        if endpoint is None:
            raise _no_endpoint()
        return _answer(endpoint_object(endpoint))

    def delete(self, endpoint_id: str) -> Response:
        """Forget an endpoint and what waits for it."""
        read_query()
        if not self._endpoints.delete(endpoint_id, current_tenant().name):
            raise _no_endpoint()
        return jsonify(id=endpoint_id, object="webhook_endpoint.deleted", deleted=True)

    def rotate_secret(self, endpoint_id: str) -> Response:
        """Give an endpoint a new secret, told this once; the old one may sign on for a day."""
        read_query()
        body = validate(RotateBody, read_object() if request.mimetype else {})
        overlap_ms = OVERLAP_MS if body.keep_old_secret_active_for_24_hours else 0
        tenant = current_tenant().name
        secret = self._endpoints.rotate(endpoint_id, tenant, overlap_ms=overlap_ms)
        if secret is None:
            raise _no_endpoint()
        return _answer(endpoint_with_secret(self._owned(endpoint_id), secret))

    def test(self, endpoint_id: str) -> Response:
        """Send a sample event and return the status the endpoint answered with."""
        read_query()
        body = validate(TestBody, read_object())
        tenant = current_tenant().name
        delivery_id = self._deliveries.test(endpoint_id, tenant, body.event_type)
        if delivery_id is None:
            raise _no_endpoint()
        record = self._at_end(endpoint_id, delivery_id)
        attempt = record.attempts[-1] if record and record.attempts else None
        if attempt is None:
            raise _undeliverable("no worker has made the attempt yet; see the deliveries")
        if attempt.status is None:
            raise _undeliverable(f"the endpoint did not answer: {attempt.result}")
        return _answer(
            TestResult(
                webhook_endpoint_id=endpoint_id,
                event_type=body.event_type.value,
                status_code=attempt.status,
            )
        )

    def list_deliveries(self, endpoint_id: str) -> Response:
        """Return a page of what was sent to an endpoint, newest first."""
        query = read_query("after", "limit", "status")
        self._owned(endpoint_id)
        states = [
            state
            for status, states in STATES_OF_STATUS.items()
            if query.get("status", status) == status
            for state in states
        ]
        if not states:
            message = f"status: should be one of {', '.join(STATES_OF_STATUS)}"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "status")
        page = self._deliveries.page(endpoint_id, _page_query(query), states)
        return _listed(page, [delivery_object(endpoint_id, record) for record in page.items])

    def retrieve_delivery(self, endpoint_id: str, delivery_id: str) -> Response:
        """Return one delivery with its attempts."""
        read_query()
        self._owned(endpoint_id)
        return self._delivery(endpoint_id, delivery_id)

    def replay(self, endpoint_id: str, delivery_id: str) -> Response:
        """Send a delivery that ended again, as a new one under the same event id."""
        read_query()
        tenant = current_tenant().name
        replay = self._deliveries.replay(endpoint_id, tenant, delivery_id)
        _raise_unless_replayed(replay)
        return self._delivery(endpoint_id, replay.delivery_id)

    def replay_failed(self, endpoint_id: str) -> Response:
        """Send everything again that failed and was not replayed before."""
        read_query()
        self._owned(endpoint_id)
        ids = self._deliveries.replay_failed(endpoint_id, current_tenant().name)
        return jsonify(object="list", data=ids)

    def _owned(self, endpoint_id: str) -> Endpoint:
        endpoint = self._endpoints.get(endpoint_id, current_tenant().name)
        if endpoint is None:
            raise _no_endpoint()
        return endpoint

    def _delivery(self, endpoint_id: str, delivery_id: str) -> Response:
        record = self._deliveries.get(endpoint_id, delivery_id)
        if record is None:
            raise _no_delivery()
        return _answer(delivery_object(endpoint_id, record))

    def _at_end(self, endpoint_id: str, delivery_id: str) -> DeliveryRecord | None:
        """Return a delivery once it has ended; as it is when time or room for waiters is out."""
        until_s = monotonic() + self._test_wait_s
        with self._waiters.waiting_for(delivery_id) as waiter:
            record = self._deliveries.get(endpoint_id, delivery_id)
            while waiter is not None and record is not None and not record.state.is_terminal:
                left_s = until_s - monotonic()
                if left_s <= 0 or self._waiters.are_closed:
                    break
                waiter.wait(left_s)
                record = self._deliveries.get(endpoint_id, delivery_id)
        return record


def webhook_secret_blueprint(secret: WebhookSecret | None) -> Blueprint:
    """Return the route that tells a tenant what signs the webhooks that its jobs name."""
    blueprint = Blueprint("webhook_secret", __name__, url_prefix="/v1")

    @blueprint.get("/webhook_secret")
    def _retrieve() -> Response:
        """Return the secret that signs the webhooks a tenant's jobs name."""
        read_query()
        if secret is None:
            message = "this installation has no webhook secret"
            raise RequestError(FailureCode.NOT_FOUND, message)
        own = secret.for_tenant(current_tenant().name)
        return jsonify(object="webhook_secret", signing_secret=own.text)

    return blueprint


def _unique(event_types: list[EventType]) -> tuple[EventType, ...]:
    return tuple(dict.fromkeys(event_types))


def _page_query(query: dict[str, str]) -> PageQuery:
    limit = query.get("limit", "20")
    if not _LIMIT.fullmatch(limit):
        message = "limit: should be an integer from 1 to 100"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "limit")
    return PageQuery(limit=int(limit), after=query.get("after"))


# Of an answer only its fields matter here, whatever its class.
def _answer(body: BaseModel) -> Response:
    return jsonify(body.model_dump(mode="json"))


def _listed(page: Page[Endpoint] | Page[DeliveryRecord], data: list[BaseModel]) -> Response:
    ids = [item.id for item in page.items]
    return jsonify(
        object="list",
        data=[item.model_dump(mode="json") for item in data],
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=page.has_more,
    )


def _raise_unless_replayed(replay: Replay) -> None:
    match replay.answer:
        case ReplayAnswer.REPLAYED:
            return
        case ReplayAnswer.UNKNOWN:
            raise _no_delivery()
        case ReplayAnswer.STILL_LIVE:
            raise RequestError(FailureCode.CONFLICT, "this delivery has not ended yet")
        case ReplayAnswer.REPLAYED_BEFORE:
            raise RequestError(FailureCode.CONFLICT, "this delivery was replayed before")


def _undeliverable(message: str) -> RequestError:
    return RequestError(FailureCode.WEBHOOK_UNDELIVERABLE, message)


def _no_endpoint() -> RequestError:
    return RequestError(FailureCode.NOT_FOUND, "there is no such webhook endpoint")


def _no_delivery() -> RequestError:
    return RequestError(FailureCode.NOT_FOUND, "there is no such delivery")
