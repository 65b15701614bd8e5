"""Who is asking: the API key of a request and the Tenant it stands for.

Owns the guard in front of every route: what is not named open needs a key, so that a new route
cannot be forgotten. Knows nothing of jobs. There is one key for now; several tenants are another
implementation of `tenant_of`.
"""

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn, cast

from flask import Flask, g, request

from ops.metrics import HttpMetrics
from queueing.errors import FailureCode, RequestError
from queueing.job import DEFAULT_TENANT

_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of keys, limits, jobs and files. Nobody sees what is another tenant's."""

    name: str


class OneKey:
    """Knows one API key, which stands for the default tenant."""

    def __init__(self, api_key: str, http: HttpMetrics) -> None:
        if not api_key:
            raise ValueError("the API key is empty")
        self._digest = _digest(api_key)
        self._http = http

    def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose key an Authorization header carries; raises RequestError for any other."""
        if authorization is None:
            self._refuse("missing")
        if not authorization.lower().startswith(_SCHEME):
            self._refuse("malformed")
        # Digests have one length: the time does not tell how much of a key is right.
        if not hmac.compare_digest(_digest(authorization[len(_SCHEME) :]), self._digest):
            self._refuse("unknown")
        return Tenant(DEFAULT_TENANT)

    def _refuse(self, reason: str) -> NoReturn:
        self._http.auth_failures.labels(reason=reason).inc()
        message = "send a valid API key in the header Authorization: Bearer"
        raise RequestError(FailureCode.INVALID_API_KEY, message)


def guard(app: Flask, keys: OneKey, open_endpoints: Collection[str]) -> None:
    """Ask for a key before every request but those to `open_endpoints`."""

    @app.before_request
    def _authenticate() -> None:
        if request.endpoint not in open_endpoints:
            g.tenant = keys.tenant_of(request.headers.get("Authorization"))


def current_tenant() -> Tenant:
    """Return whose key the running request carries."""
    return cast("Tenant", g.tenant)


def _digest(api_key: str) -> bytes:
    # What comes over the wire is any sequence of characters, also of those that have no encoding.
    return hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).digest()
