"""One shape for every refusal: OpenAI's error object, its status, and what a retry may do.

Body: {"error": {"message", "type", "param", "code"}, "request_id"}. `code` is a FailureCode, `type`
a coarser class in OpenAI's words, `param` the field at fault or null. Retry-After says in seconds
when to ask again; x-should-retry: false keeps OpenAI's clients from repeating a conflict. Nothing
that a caller wrote is quoted, and nothing of the inside is told: what was not foreseen is logged
and answered with a bare 500.
"""

from typing import Any

from flask import Flask, Response, g, jsonify
from werkzeug.exceptions import HTTPException

from api.caller import CallerLeft
from api.drain import DrainingError
from api.limits import RateLimited
from api.waiters import TooManyWaiters
from api.watch import WaitOver
from ops.metrics import StoreMetrics
from queueing.errors import (
    FailureCode,
    QueueFull,
    QueueShed,
    RequestError,
    StorageFull,
    StoreUnavailable,
)

_RETRY_AFTER_S = 5
_FULL_RETRY_S = 1
# nginx's status for a caller that closed the connection; nobody receives it but the log.
_CALLER_LEFT = 499

_STATUS = {
    FailureCode.INVALID_API_KEY: 401,
    FailureCode.PERMISSION_DENIED: 403,
    FailureCode.PRIORITY_NOT_ALLOWED: 403,
    FailureCode.MODEL_NOT_FOUND: 404,
    FailureCode.NOT_FOUND: 404,
    FailureCode.METHOD_NOT_ALLOWED: 405,
    FailureCode.CANCELLED: 409,
    FailureCode.CONFLICT: 409,
    FailureCode.IDEMPOTENCY_CONFLICT: 409,
    FailureCode.FILE_TOO_LARGE: 413,
    FailureCode.REQUEST_TOO_LARGE: 413,
    FailureCode.UNSUPPORTED_MEDIA_TYPE: 415,
    FailureCode.OVERLOADED: 429,
    FailureCode.QUOTA_EXCEEDED: 429,
    FailureCode.RATE_LIMIT_EXCEEDED: 429,
    FailureCode.ENGINE_ERROR: 500,
    FailureCode.INTERNAL_ERROR: 500,
    FailureCode.OUT_OF_MEMORY: 500,
    FailureCode.WORKER_LOST: 500,
    FailureCode.DRAINING: 503,
    FailureCode.QUEUE_FULL: 503,
    FailureCode.STORE_UNAVAILABLE: 503,
    FailureCode.DEADLINE_EXCEEDED: 504,
    FailureCode.INSUFFICIENT_STORAGE: 507,
}
# What clients would ask again by themselves and had better not: the job may have killed its
# workers, or it took all the time there is.
_FINAL = (FailureCode.WORKER_LOST, FailureCode.DEADLINE_EXCEEDED)
_BAD_REQUEST = 400
# What Flask and Werkzeug refuse by themselves, where no code of ours runs.
_CODE_OF_STATUS = {
    404: FailureCode.NOT_FOUND,
    405: FailureCode.METHOD_NOT_ALLOWED,
    413: FailureCode.REQUEST_TOO_LARGE,
    415: FailureCode.UNSUPPORTED_MEDIA_TYPE,
    500: FailureCode.INTERNAL_ERROR,
}
_MESSAGE_OF_STATUS = {
    404: "there is nothing at this address",
    405: "this address does not take this method",
    413: "the request body is too large",
    500: "something went wrong on our side; the request id helps to find out what",
}


def register_error_handlers(app: Flask, store: StoreMetrics) -> None:
    """Answer every exception of a request in the one shape."""

    @app.errorhandler(StoreUnavailable)
    def _store_unavailable(error: StoreUnavailable) -> Response:
        store.errors.labels(kind=error.kind).inc()
        return _try_later(FailureCode.STORE_UNAVAILABLE, "the store is unavailable", _RETRY_AFTER_S)

    app.register_error_handler(RequestError, _request_error)
    app.register_error_handler(RateLimited, _rate_limited)
    app.register_error_handler(QueueFull, _queue_full)
    app.register_error_handler(QueueShed, _queue_shed)
    app.register_error_handler(TooManyWaiters, _too_many_waiters)
    app.register_error_handler(CallerLeft, _caller_left)
    app.register_error_handler(WaitOver, _wait_over)
    app.register_error_handler(DrainingError, _draining)
    app.register_error_handler(StorageFull, _storage_full)
    app.register_error_handler(HTTPException, _http_exception)


def refusal(code: FailureCode, message: str, param: str | None = None) -> Response:
    """Return the answer to a request that is refused."""
    status = _STATUS.get(code, _BAD_REQUEST)
    response = jsonify(error=error_object(code, message, param), request_id=g.get("request_id"))
    response.status_code = status
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status == 409 or code in _FINAL:
        response.headers["x-should-retry"] = "false"
    return response


def error_object(code: FailureCode, message: str, param: str | None = None) -> dict[str, Any]:
    """Return what an answer, or an event of a stream, says of a failure."""
    status = _STATUS.get(code, _BAD_REQUEST)
    return {"message": message, "type": _type_of(status), "param": param, "code": code.value}


def _try_later(code: FailureCode, message: str, retry_after_s: int) -> Response:
    response = refusal(code, message)
    response.headers["Retry-After"] = str(retry_after_s)
    return response


def _request_error(error: RequestError) -> Response:
    return refusal(error.code, error.message, error.param)


def _rate_limited(error: RateLimited) -> Response:
    match error.what:
        case "keys":
            message = "too many bad keys came from this address"
        case "day":
            # A wait until tomorrow is nothing for a client to sit out.
            message = "the tokens of this day are used up; they count again from midnight UTC"
            response = _try_later(FailureCode.QUOTA_EXCEEDED, message, error.retry_after_s)
            response.headers["x-should-retry"] = "false"
            return response
        case what:
            message = f"the rate limit on {what} is used up"
    return _try_later(FailureCode.RATE_LIMIT_EXCEEDED, message, error.retry_after_s)


def _queue_full(error: QueueFull) -> Response:
    return _try_later(FailureCode.QUEUE_FULL, "the queue is full", error.retry_after_s)


def _queue_shed(error: QueueShed) -> Response:
    message = "the queue takes only more urgent work at present"
    return _try_later(FailureCode.OVERLOADED, message, error.retry_after_s)


def _too_many_waiters(_: TooManyWaiters) -> Response:
    message = "too many requests wait for their answers already"
    return _try_later(FailureCode.OVERLOADED, message, _FULL_RETRY_S)


def _wait_over(_: WaitOver) -> Response:
    return refusal(FailureCode.DEADLINE_EXCEEDED, "the answer took too long")


def _caller_left(_: CallerLeft) -> Response:
    return Response(status=_CALLER_LEFT)


def _draining(_: DrainingError) -> Response:
    message = "this server takes no new work at present: it drains"
    return _try_later(FailureCode.DRAINING, message, _RETRY_AFTER_S)


def _storage_full(_: StorageFull) -> Response:
    return refusal(FailureCode.INSUFFICIENT_STORAGE, "there is no room left for files")


def _http_exception(error: HTTPException) -> Response:
    status = error.code or 500
    code = _CODE_OF_STATUS.get(status, FailureCode.INVALID_REQUEST)
    response = refusal(code, _MESSAGE_OF_STATUS.get(status, "the request is malformed"))
    for name, value in error.get_headers():
        if name == "Allow":
            response.headers[name] = value
    return response


def _type_of(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"
