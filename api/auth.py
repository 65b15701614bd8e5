"""Who is asking: the API key of a request and the Tenant it stands for.

Owns the guard in front of every route: what is not named open needs a key, so that a new route
cannot be forgotten. Knows nothing of jobs.

A key that was found good is believed for CACHE_S without asking the store again; after that time at
most a revoked key is refused, everywhere.
"""

import hmac
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import NoReturn, cast

import structlog
from flask import Flask, g, request

from api.limits import BadKeys
from ops.metrics import HttpMetrics
from queueing.api_key import digest_of
from queueing.errors import FailureCode, RequestError
from queueing.tenants import Tenant, TenantStore, default_tenant

CACHE_S = 2.0

_SCHEME = "bearer "
_MAX_CACHED = 4_096


@dataclass(frozen=True, slots=True)
class _Known:
    tenant: Tenant
    until_s: float


class Keyring:
    """Knows whose a key is: the one of the settings, and those of the store. Thread-safe."""

    def __init__(self, settings_key: str, tenants: TenantStore, http: HttpMetrics) -> None:
        if not settings_key:
            raise ValueError("the API key is empty")
        self._settings_digest = digest_of(settings_key)
        self._tenants = tenants
        self._http = http
        self._bad_keys = BadKeys()
        self._lock = Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def tenant_of(self, authorization: str | None, address: str) -> Tenant:
        """Return whose key an Authorization header carries.

        Raises RequestError for any other, and RateLimited once `address` has sent too many. A good
        key is taken from every address: behind one proxy all have the same.
        """
        if authorization is None:
            self._refuse("missing")
        if not authorization.lower().startswith(_SCHEME):
            self._refuse_bad("malformed", address)
        api_key = authorization[len(_SCHEME) :]
        digest = digest_of(api_key)
        # Digests have one length: the time does not tell how much of a key is right.
        if hmac.compare_digest(digest, self._settings_digest):
            return default_tenant()
        tenant = self._cached(digest) or self._tenants.owner_of(api_key)
        if tenant is None:
            self._refuse_bad("unknown", address)
        self._remember(digest, tenant)
        return tenant

    def _cached(self, digest: str) -> Tenant | None:
        with self._lock:
            known = self._known.get(digest)
            if known is None:
                return None
            if known.until_s > monotonic():
                return known.tenant
            del self._known[digest]
        return None

    def _remember(self, digest: str, tenant: Tenant) -> None:
        # One that is known keeps its time, or a key in steady use would never be looked up again.
        with self._lock:
            self._known.setdefault(digest, _Known(tenant, monotonic() + CACHE_S))
            if len(self._known) > _MAX_CACHED:
                self._known.popitem(last=False)

    def _refuse_bad(self, reason: str, address: str) -> NoReturn:
        self._bad_keys.count(address)
        self._refuse(reason)

    def _refuse(self, reason: str) -> NoReturn:
        self._http.auth_failures.labels(reason=reason).inc()
        message = "send a valid API key in the header Authorization: Bearer"
        raise RequestError(FailureCode.INVALID_API_KEY, message)


def guard(app: Flask, keyring: Keyring, open_endpoints: Collection[str]) -> None:
    """Ask for a key before every request but those to `open_endpoints`."""

    @app.before_request
    def _authenticate() -> None:
        if request.endpoint not in open_endpoints:
            authorization = request.headers.get("Authorization")
            tenant = keyring.tenant_of(authorization, request.remote_addr or "")
            structlog.contextvars.bind_contextvars(tenant=tenant.name)
            g.tenant = tenant


def current_tenant() -> Tenant:
    """Return whose key the running request carries."""
    return cast("Tenant", g.tenant)
