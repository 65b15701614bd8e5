"""How a repeated request is known: by its Idempotency-Key, or by its client's mark of a retry.

OpenAI's clients send x-stainless-retry-count: 0 with a first request, and more with a repeat of one
whose answer they did not get. Such a repeat gets the object of the last first request with the same
body, if that came within REPEAT_WINDOW_MS. Two first requests are two requests, however equal.
"""

import hashlib
import json
import re
from typing import Any

from flask import request

from queueing.errors import FailureCode, RequestError
from queueing.job import Idempotency

# A client waits ten minutes for an answer before it asks again.
REPEAT_WINDOW_MS = 900_000

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_COUNT = re.compile(r"[0-9]{1,3}")
_BY_BODY = "body:"


def read_idempotency(route: str, fields: dict[str, Any]) -> Idempotency | None:
    """Return what tells that a request is a repeat, or may be repeated; None without a word of it.

    Raises RequestError for a key out of shape.
    """
    return read_idempotency_key(route, fields) or _read_retry_mark(route, fields)


def read_idempotency_key(route: str, fields: dict[str, Any]) -> Idempotency | None:
    """Return the request's Idempotency-Key with a digest of what was asked; None without one."""
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        message = "Idempotency-Key: should be 1 to 255 visible ASCII characters"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "Idempotency-Key")
    return Idempotency(route, key, _digest(fields))


def _read_retry_mark(route: str, fields: dict[str, Any]) -> Idempotency | None:
    count = request.headers.get("x-stainless-retry-count", "")
    if not _COUNT.fullmatch(count):
        return None
    digest = _digest(fields)
    # A blank can't be in a client's own key, so the two never meet.
    key = f"{_BY_BODY} {digest}"
    return Idempotency(route, key, digest, begins=int(count) == 0, ttl_ms=REPEAT_WINDOW_MS)


def _digest(fields: dict[str, Any]) -> str:
    # Of the fields, not of the bytes: a client that repeats itself may order them anew.
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
