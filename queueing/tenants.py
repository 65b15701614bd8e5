"""Tenants: who owns keys, jobs and files, what each may do, and the API keys that stand for them.

TenantStore is the verbs over Redis; one verb that writes is one script. Of a key only its digest is
kept (see api_key.py), so that it is shown once and no reader of the store can use it. Knows no
HTTP. Verbs raise StoreUnavailable.
"""

import hmac
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import redis

from queueing import keys
from queueing.admission import RateLimits
from queueing.api_key import digest_of, hint_of, id_of, is_whole, new_api_key
from queueing.clock import Clock
from queueing.errors import FailureCode, RequestError
from queueing.job import DEFAULT_TENANT, Priority
from queueing.queue import QueueLimits
from queueing.store import Script, translated_errors

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_LABEL = re.compile(r"[\x20-\x7e]{0,64}")


class Tier(StrEnum):
    """A tenant's class; it sets the share of the service its jobs get beside others."""

    FREE = "free"
    STANDARD = "standard"
    PREMIUM = "premium"

    @property
    def weight(self) -> float:
        """Tokens it is served for each token of a standard tenant, while both wait."""
        return {Tier.FREE: 0.5, Tier.STANDARD: 1.0, Tier.PREMIUM: 4.0}[self]


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of keys, limits, jobs and files. Nobody sees what is another tenant's.

    `models` None allows every served model. Without more than a name a tenant may do everything.
    """

    name: str
    tier: Tier = Tier.STANDARD
    priorities: frozenset[Priority] = frozenset(Priority)
    models: frozenset[str] | None = None
    limits: RateLimits = field(default_factory=RateLimits)

    def may_use(self, model: str) -> bool:
        """Tell whether it may have jobs of this model."""
        return self.models is None or model in self.models

    def check_priority(self, priority: Priority) -> None:
        """Raise RequestError unless it may have jobs of this priority."""
        if priority not in self.priorities:
            message = f"this key does not allow the priority {priority}"
            raise RequestError(FailureCode.PRIORITY_NOT_ALLOWED, message, "priority")

    def check_model(self, model: str) -> None:
        """Raise RequestError, as for a model that is not served, unless it may use this one."""
        if not self.may_use(model):
            raise RequestError(FailureCode.MODEL_NOT_FOUND, "no such model is served", "model")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as it is listed. Instants are seconds of the store's clock."""

    id: str
    tenant: str
    name: str
    hint: str
    created_s: float
    revoked_s: float | None


class TenantStore:
    """The tenants and keys of one installation. Thread-safe: it holds nothing but the client."""

    def __init__(
        self, client: "redis.Redis", *, prefix: str = "{pm}:", clock: Clock | None = None
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._limits_json = QueueLimits().as_json()
        self._put = Script(client, "tenant_put", prefix, allow_oom=False)
        self._create_key = Script(client, "api_key_create", prefix, allow_oom=False)
        self._revoke_key = Script(client, "api_key_revoke", prefix, allow_oom=True)

    def put(self, tenant: Tenant) -> None:
        """Make a tenant, or change what it may do; raises RequestError for a name out of shape."""
        if not _NAME.fullmatch(tenant.name):
            message = "a tenant's name is 1 to 63 of a-z, 0-9 and -, and begins with no -"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "name")
        self._put(*self._head(), tenant.name, _policy_of(tenant))

    def get(self, name: str) -> Tenant | None:
        """Return a tenant; None when it was never made."""
        with translated_errors():
            key = keys.TENANT.of(self._prefix, tenant=name)
            policy: Any = self._client.hget(key, "policy")
        return None if policy is None else _tenant_of(name, policy)

    def all_tenants(self) -> list[Tenant]:
        """Return all tenants in the order they were made."""
        with translated_errors():
            names: Any = self._client.zrange(keys.TENANT_NAMES.of(self._prefix), 0, -1)
        found = [self.get(name) for name in names]
        return [tenant for tenant in found if tenant is not None]

    def create_key(self, tenant: str, name: str = "") -> tuple[ApiKey, str]:
        """Make a key and return it with its text, which is not told again.

        Raises RequestError for a tenant that was never made.
        """
        if not _LABEL.fullmatch(name):
            message = "a key's name is up to 64 printable ASCII characters"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "name")
        text = new_api_key()
        digest = digest_of(text)
        key_id = id_of(digest)
        fields = {"id": key_id, "tenant": tenant, "name": name, "hint": hint_of(text)}
        if not self._create_key(*self._head(), json.dumps(fields | {"digest": digest})):
            raise RequestError(FailureCode.NOT_FOUND, "there is no such tenant", "tenant")
        (api_key,) = self._fetch([key_id])
        return api_key, text

    def revoke_key(self, key_id: str) -> bool:
        """End a key for good; False for an unknown one. A repeat changes nothing."""
        return bool(self._revoke_key(*self._head(), key_id))

    def keys_of(self, tenant: str) -> list[ApiKey]:
        """Return a tenant's keys, oldest first, also those revoked within the last 30 days."""
        with translated_errors():
            index = keys.API_KEYS.of(self._prefix, tenant=tenant)
            ids: Any = self._client.zrange(index, 0, -1)
        return self._fetch(ids)

    def owner_of(self, api_key: str) -> Tenant | None:
        """Return the tenant a key stands for; None for a revoked key and for any other text."""
        if not is_whole(api_key):
            return None
        digest = digest_of(api_key)
        with translated_errors():
            key = keys.API_KEY.of(self._prefix, id=id_of(digest))
            kept: Any = self._client.hmget(key, "digest", "tenant", "revoked_ms")
        known, tenant, revoked_ms = kept
        # The id tells half of the digest; the rest is compared in a time that tells nothing.
        if known is None or not hmac.compare_digest(known, digest) or revoked_ms is not None:
            return None
        return self.get(tenant)

    def _head(self) -> tuple[str, str]:
        return (str(self._clock.now_ms()) if self._clock else "", self._limits_json)

    def _fetch(self, ids: Iterable[str]) -> list[ApiKey]:
        ids = list(ids)
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for key_id in ids:
                pipeline.hgetall(keys.API_KEY.of(self._prefix, id=key_id))
            found = pipeline.execute()
        return [
            _api_key_of(key_id, fields) for key_id, fields in zip(ids, found, strict=True) if fields
        ]


def default_tenant() -> Tenant:
    """Return the tenant of the key in the settings: the operator's own, who may do everything."""
    return Tenant(DEFAULT_TENANT)


def _policy_of(tenant: Tenant) -> str:
    limits = tenant.limits
    return json.dumps(
        {
            "tier": tenant.tier,
            "priorities": sorted(tenant.priorities),
            "models": None if tenant.models is None else sorted(tenant.models),
            "requests_per_min": limits.requests_per_min,
            "tokens_per_min": limits.tokens_per_min,
            "tokens_per_day": limits.tokens_per_day,
        }
    )


def _tenant_of(name: str, policy: str) -> Tenant:
    fields = json.loads(policy)
    models = fields.pop("models")
    return Tenant(
        name=name,
        tier=Tier(fields.pop("tier")),
        priorities=frozenset(map(Priority, fields.pop("priorities"))),
        models=None if models is None else frozenset(models),
        limits=RateLimits(**fields),
    )


def _api_key_of(key_id: str, fields: dict[str, str]) -> ApiKey:
    revoked_ms = fields.get("revoked_ms")
    return ApiKey(
        id=key_id,
        tenant=fields["tenant"],
        name=fields["name"],
        hint=fields["hint"],
        created_s=int(fields["created_ms"]) / 1000,
        revoked_s=None if revoked_ms is None else int(revoked_ms) / 1000,
    )
