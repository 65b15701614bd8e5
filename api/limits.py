"""Limits at the door: a tenant's rates, and how often an address may come with a bad key.

Owns the answer 429 of both and the RateLimit headers. Rates are kept in the store, which all
processes share. Bad keys are counted in this process alone: what a stranger sends must not cost
the store anything. Knows nothing of jobs.
"""

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from threading import Lock
from time import monotonic

from flask import Flask, Response, g

from queueing.admission import Admission, Allowance
from queueing.errors import PromptmillError
from queueing.tenants import Tenant

# Far below what guessing needs, far above what a wrong setting sends before somebody looks.
_MAX_BAD_KEYS = 20
_BAD_KEYS_PER_S = 20 / 60
_MAX_ADDRESSES = 10_000
# Who has one IPv6 address has a whole network of so many bits.
_IPV6_NETWORK_BYTES = 8


class RateLimited(PromptmillError):
    """A rate is used up: `what` is requests, tokens, day or keys. Ask again in `retry_after_s`."""

    def __init__(self, what: str, retry_after_s: int) -> None:
        super().__init__(f"{what} are used up")
        self.what = what
        self.retry_after_s = retry_after_s


class TenantRates:
    """Counts requests and tokens against their tenant's limits. Thread-safe."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def take(self, tenant: Tenant, tokens: int) -> None:
        """Count one request; raises RateLimited, and StoreUnavailable rather than let it pass."""
        verdict = self._admission.take(tenant.name, tenant.limits, tokens)
        g.allowance = verdict.allowance
        if verdict.used_up is not None:
            raise RateLimited(verdict.used_up, verdict.retry_after_s)


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float


class BadKeys:
    """Counts bad keys by the address they came from. Thread-safe, and bounded in memory.

    All addresses of an IPv6 network of 64 bits count as one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._buckets: OrderedDict[bytes, _Bucket] = OrderedDict()

    def count(self, address: str) -> None:
        """Count one; raises RateLimited when the address has had its share."""
        source = _source_of(address)
        now_s = monotonic()
        with self._lock:
            bucket = self._buckets.pop(source, None) or _Bucket(_MAX_BAD_KEYS, now_s)
            refilled = bucket.level + (now_s - bucket.at_s) * _BAD_KEYS_PER_S
            level = min(_MAX_BAD_KEYS, refilled)
            self._buckets[source] = _Bucket(max(0.0, level - 1), now_s)
            # The address that was quiet longest has the fullest bucket, so little is forgotten.
            if len(self._buckets) > _MAX_ADDRESSES:
                self._buckets.popitem(last=False)
        if level < 1:
            raise RateLimited("keys", round(1 / _BAD_KEYS_PER_S))


def _source_of(address: str) -> bytes:
    """Return what all addresses of one caller have in common; what is no address is itself."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address.encode()
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped  # how a listener for both kinds shows an IPv4 address
        return mapped.packed if mapped else parsed.packed[:_IPV6_NETWORK_BYTES]
    return parsed.packed


def tell_allowances(app: Flask) -> None:
    """Tell a limited tenant in every answer to a submit how much is left."""

    @app.after_request
    def _tell(response: Response) -> Response:
        allowance: Allowance | None = g.get("allowance")
        if allowance is not None:
            response.headers["RateLimit-Limit"] = str(allowance.limit)
            response.headers["RateLimit-Remaining"] = str(allowance.remaining)
            response.headers["RateLimit-Reset"] = str(allowance.reset_s)
        return response
