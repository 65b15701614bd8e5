"""What is the same for every request: id, log line, metrics, headers, and how it is read.

Owns the edge between HTTP and the handlers. A request id is taken from the caller when it is plain,
else made here; it is in every answer and every log line. Knows nothing of jobs.
"""

import re
from time import monotonic
from typing import Any, cast

import structlog
from flask import Flask, Response, g, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.routing import BaseConverter

from ops.logs import Event
from ops.metrics import HttpMetrics
from queueing.body import parse_object
from queueing.errors import FailureCode, RequestError
from queueing.job import new_id

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_CONVERTER = re.compile(r"<[^<>]+:")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_UNKNOWN = "other"

log = structlog.stdlib.get_logger(__name__)


class ObjectId(BaseConverter):
    """A path part that is one of our ids: `<id("job_"):job_id>`. Everything else is a 404.

    Nothing but such an id may reach a key's name.
    """

    def __init__(self, url_map: Any, prefix: str) -> None:  # werkzeug's own type is not exported
        super().__init__(url_map)
        self.regex = re.escape(prefix) + "[0-9A-Za-z]{22}"


def observe_requests(app: Flask, http: HttpMetrics) -> None:
    """Give every request an id, a log line and its place in the metrics."""

    @app.before_request
    def _begin() -> None:
        g.started_s = monotonic()
        g.request_id = _request_id(request.headers.get("x-request-id"))
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=g.request_id)
        http.requests_in_progress.inc()

    @app.after_request
    def _end(response: Response) -> Response:
        response.headers["x-request-id"] = g.request_id
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers.setdefault("Cache-Control", "no-store")
        duration_s = monotonic() - g.started_s
        route = _route()
        method = request.method if request.method in _METHODS else _UNKNOWN
        http.requests.labels(route=route, method=method, code=response.status_code).inc()
        http.request_duration_seconds.labels(route=route, method=method).observe(duration_s)
        log.info(
            Event.REQUEST_SERVED,
            route=route,
            method=method,
            code=response.status_code,
            latency_ms=round(duration_s * 1000, 1),
        )
        return response

    @app.teardown_request
    def _leave(_: BaseException | None) -> None:
        http.requests_in_progress.dec()


def read_object() -> dict[str, Any]:
    """Return the request's body, one JSON object; raises RequestError."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        message = "compressed bodies are not taken"
        raise RequestError(FailureCode.UNSUPPORTED_MEDIA_TYPE, message)
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if request.mimetype != "application/json" or charset != "utf-8":
        message = "the body must be application/json in UTF-8"
        raise RequestError(FailureCode.UNSUPPORTED_MEDIA_TYPE, message)
    data = request.get_data(cache=False)
    # A chunked body is cut at the maximum without a word, so what reaches it may be half a body.
    if request.max_content_length is not None and len(data) >= request.max_content_length:
        raise RequestEntityTooLarge
    g.fields = parse_object(data)  # for the audit, should one of them name what is not there
    return cast("dict[str, Any]", g.fields)


def read_query(*known: str) -> dict[str, str]:
    """Return the query's parameters; raises RequestError for unknown and repeated ones."""
    for name, values in request.args.lists():
        if name not in known:
            message = f"unknown parameter: {name[:64]}"
            raise RequestError(FailureCode.UNKNOWN_PARAMETER, message, name[:64])
        if len(values) > 1:
            message = f"{name} is given twice"
            raise RequestError(FailureCode.INVALID_REQUEST, message, name)
    return request.args.to_dict()


def _route() -> str:
    """Return the rule that matched, as documents spell it; never the path."""
    if request.url_rule is None:
        return _UNKNOWN
    return _CONVERTER.sub("<", request.url_rule.rule)


def _request_id(sent: str | None) -> str:
    if sent is not None and _REQUEST_ID.fullmatch(sent):
        return sent
    return new_id("req_")
