"""Responses: POST /v1/responses, at once, in the background or as it comes; and what comes after.

A response is a job under the name its clients know. It is told as long as its texts are kept.
"""

import re
from contextlib import suppress
from functools import partial

from flask import Blueprint, Response, jsonify

from api.auth import current_tenant
from api.idempotency import read_idempotency, read_idempotency_key
from api.openai.answers import Answers
from api.openai.orders import Order, Surface, order_of
from api.openai.response_events import ResponseEvents
from api.openai.streaming import stream
from api.requests import read_object, read_query
from queueing.errors import FailureCode, RequestError, StoreUnavailable
from queueing.job import JobRecord
from queueing.openai_response import (
    LOGPROBS,
    ResponseCall,
    is_background,
    parse_response_call,
    response_object,
    size_response,
)
from queueing.queue import JobQueue
from queueing.served_model import ServedModels
from queueing.wire import GenerateRequest, decode_request

_SURFACE = Surface("responses", "resp_")
# As clients spell a list of one.
_INCLUDE = "include[]"
_NUMBER = re.compile(r"[0-9]{1,9}")


class ResponseRoutes:
    """The handlers of /v1/responses. They hold nothing of a request."""

    def __init__(self, answers: Answers, queue: JobQueue, models: ServedModels) -> None:
        self._answers = answers
        self._queue = queue
        self._models = models

    def blueprint(self) -> Blueprint:
        """Return the routes, to be registered once."""
        blueprint = Blueprint("responses", __name__, url_prefix="/v1/responses")
        one = '/<id("resp_"):response_id>'
        blueprint.add_url_rule("", view_func=self.create, methods=["POST"])
        blueprint.add_url_rule(one, view_func=self.retrieve, methods=["GET"])
        blueprint.add_url_rule(one, view_func=self.delete, methods=["DELETE"])
        blueprint.add_url_rule(f"{one}/cancel", view_func=self.cancel, methods=["POST"])
        return blueprint

    def create(self) -> Response:
        """Make a response; without `background`, a caller who leaves cancels it."""
        read_query()
        fields = read_object()
        call = parse_response_call(fields)
        sized = size_response(call, self._models.among(current_tenant().models))
        read = read_idempotency if call.background else read_idempotency_key
        idempotency = read(_SURFACE.name, fields)
        order = order_of(_SURFACE, sized, idempotency, call.service_tier, call.metadata)
        if call.stream:
            return self._as_it_comes(order, call)
        if call.background:
            return jsonify(response_object(self._answers.later(order), sized.request))
        return jsonify(self._at_once(order, call))

    def retrieve(self, response_id: str) -> Response:
        """Return a response as it is; with ?stream=true as it comes, from the first event on."""
        query = read_query("stream", "starting_after", "include_obfuscation", _INCLUDE)
        record, asked = self._known(response_id)
        _check_include(query, asked)
        if _is_true(query, "include_obfuscation"):
            message = "include_obfuscation is not supported here"
            raise RequestError(FailureCode.UNSUPPORTED_PARAMETER, message, "include_obfuscation")
        if _is_true(query, "stream"):
            return self._again(record, asked, query)
        return jsonify(response_object(record, asked))

    def cancel(self, response_id: str) -> Response:
        """End a response that was made in the background; one that has ended stays as it is."""
        read_query()
        _, asked = self._known(response_id)
        if not is_background(asked):
            message = "only a response made with background: true can be cancelled"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "response_id")
        self._queue.cancel(response_id, current_tenant().name)
        return self.retrieve(response_id)

    def delete(self, response_id: str) -> Response:
        """Delete a response and its texts, ending it first."""
        read_query()
        if not self._queue.erase(response_id, current_tenant().name):
            raise _not_found()
        return jsonify(id=response_id, object="response", deleted=True)

    def _as_it_comes(self, order: Order, call: ResponseCall) -> Response:
        following = self._answers.as_it_comes(order, is_awaited=not call.background)
        response = stream(following, ResponseEvents(following.record, order.sized.request))
        if call.store is False:
            response.call_on_close(partial(self._erase, following.record.id, order.tenant.name))
        return response

    def _again(self, record: JobRecord, asked: GenerateRequest, query: dict[str, str]) -> Response:
        if not (asked.stream and is_background(asked)):
            message = "stream: only of a response made with background: true and stream: true"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "stream")
        after = query.get("starting_after")
        if after is not None and not _NUMBER.fullmatch(after):
            message = "starting_after: should be a sequence number"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "starting_after")
        following = self._answers.again(record.id, current_tenant().name)
        return stream(following, ResponseEvents(record, asked, -1 if after is None else int(after)))

    def _at_once(self, order: Order, call: ResponseCall) -> dict[str, object]:
        record = self._answers.at_once(order)
        if call.store is False:
            self._erase(record.id, order.tenant.name)
        return response_object(record, order.sized.request)

    def _erase(self, job_id: str, tenant: str) -> None:
        """Keep nothing of what was not to be stored; a store that is away forgets it later."""
        with suppress(StoreUnavailable):
            self._queue.erase(job_id, tenant)

    def _known(self, response_id: str) -> tuple[JobRecord, GenerateRequest]:
        """Return a response's job and what was asked; 404 when its texts are gone."""
        record = self._queue.get(response_id, current_tenant().name)
        asked = None if record is None else self._queue.request(response_id)
        if record is None or asked is None or record.result_expired:
            raise _not_found()
        return record, decode_request(asked)


def _check_include(query: dict[str, str], asked: GenerateRequest) -> None:
    """Refuse what a response can't tell; its log probabilities are told whenever it has them."""
    wanted = query.get(_INCLUDE, LOGPROBS)
    if wanted != LOGPROBS:
        message = f"include: should be {LOGPROBS}"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "include")
    if _INCLUDE in query and asked.num_logprobs is None:
        message = "include: the response was made without log probabilities"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "include")


def _is_true(query: dict[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        message = f"{name}: should be true or false"
        raise RequestError(FailureCode.INVALID_REQUEST, message, name)
    return value == "true"


def _not_found() -> RequestError:
    return RequestError(FailureCode.NOT_FOUND, "there is no such response")
