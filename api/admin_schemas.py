"""The contract of the admin API: what is asked, and what is told of each thing. Knows no HTTP."""

from typing import Annotated, Any

from pydantic import Field

from queueing.body import StrictModel
from queueing.dead_jobs import DeadJob
from queueing.endpoints import Endpoint
from queueing.fields import MAX_TOKENS_LIMIT
from queueing.job import Priority
from queueing.queue import QueueDepth
from queueing.tenants import ApiKey, Tenant, Tier

_Rate = Annotated[int, Field(ge=1)] | None
# Not strict: the wire has the names, not the members.
_Tier = Annotated[Tier, Field(strict=False)]
_Priorities = Annotated[list[Annotated[Priority, Field(strict=False)]], Field(min_length=1)]


class TenantBody(StrictModel):
    """What a tenant may do; what is not given is without limit."""

    tier: _Tier = Tier.STANDARD
    priorities: _Priorities = Field(default_factory=lambda: list(Priority))
    models: list[str] | None = None
    requests_per_min: _Rate = None
    tokens_per_min: _Rate = None
    tokens_per_day: _Rate = None


class KeyBody(StrictModel):
    """What a new key is for."""

    name: str = ""


class SwitchBody(StrictModel):
    """What a switch is set to; null turns it off. Those that are only on or off are on with 1."""

    value: Annotated[int, Field(ge=1, le=MAX_TOKENS_LIMIT)] | None


class ModelRouteBody(StrictModel):
    """The model that is used in place of another; null is the model itself again."""

    used: Annotated[str, Field(min_length=1, max_length=200)] | None


def queue_object(name: str, depth: QueueDepth, totals: dict[str, int]) -> dict[str, Any]:
    """Say what waits in a queue, by priority, what is leased, and what became of the rest."""
    return {
        "name": name,
        "ready": {priority.value: count for priority, count in depth.ready.items()},
        "oldest_age_s": {priority.value: age for priority, age in depth.oldest_age_s.items()},
        "later": depth.later,
        "leased": depth.leased,
        "totals": totals,
    }


def tenant_object(tenant: Tenant) -> dict[str, Any]:
    """Say what a tenant may do."""
    return {
        "object": "tenant",
        "name": tenant.name,
        "tier": tenant.tier.value,
        "priorities": [priority.value for priority in Priority if priority in tenant.priorities],
        "models": None if tenant.models is None else sorted(tenant.models),
        "requests_per_min": tenant.limits.requests_per_min,
        "tokens_per_min": tenant.limits.tokens_per_min,
        "tokens_per_day": tenant.limits.tokens_per_day,
    }


def key_object(key: ApiKey) -> dict[str, Any]:
    """Say what is told of a key; its text is not."""
    return {
        "id": key.id,
        "object": "api_key",
        "tenant": key.tenant,
        "name": key.name,
        "hint": key.hint,
        "created_at": key.created_s,
        "revoked_at": key.revoked_s,
    }


def dead_object(job: DeadJob) -> dict[str, Any]:
    """Say what is told of a dead job; its prompt is not."""
    return {
        "id": job.id,
        "object": "dead_job",
        "tenant": job.tenant,
        "queue": job.queue,
        "priority": job.priority.value,
        "losses": job.losses,
        "created_at": job.arrival_s,
        "finished_at": job.finished_s,
    }


def disabled_object(endpoint: Endpoint) -> dict[str, Any]:
    """Say what is told of an endpoint; its URL, which can hold a secret, is not."""
    return {
        "id": endpoint.id,
        "object": "webhook_endpoint",
        "tenant": endpoint.tenant,
        "disabled_at": endpoint.disabled_s,
        "disabled_reason": endpoint.disabled_reason,
    }
