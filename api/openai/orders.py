"""Order: a request that was understood, ready to be queued, whichever surface it came by.

Owns what the surfaces share between reading a body and answering it: the job's name and its
priority. Knows no surface's body.
"""

from dataclasses import dataclass
from time import monotonic

from flask import g

from api.auth import current_tenant
from api.submission import JobOptions
from queueing.job import Idempotency, new_id
from queueing.openai_sampling import priority_of
from queueing.served_model import SizedEmbedding, SizedRequest
from queueing.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Surface:
    """A way of asking. Its jobs are named as its clients know them; the metrics call it `name`."""

    name: str
    id_prefix: str


@dataclass(frozen=True, slots=True)
class Order:
    """What to queue for whom. `job_id` names the job, unless an equal earlier request has one."""

    tenant: Tenant
    sized: SizedRequest
    options: JobOptions
    job_id: str


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """Several jobs that make one answer, in its order; `job_ids` as in an Order."""

    tenant: Tenant
    sized: tuple[SizedEmbedding, ...]
    options: JobOptions
    job_ids: tuple[str, ...]


def order_of(
    surface: Surface,
    sized: SizedRequest,
    idempotency: Idempotency | None,
    tier: str | None = None,
    metadata: dict[str, str] | None = None,
) -> Order:
    """Return the running request's order."""
    tenant = current_tenant()
    job_id = new_id(surface.id_prefix)
    options = JobOptions(
        endpoint=surface.name,
        priority=priority_of(tier, tenant.priorities),
        job_id=job_id,
        metadata=metadata,
        idempotency=idempotency,
        validate_ms=_validate_ms(),
    )
    return Order(tenant, sized, options, job_id)


def group_order_of(
    surface: Surface, sized: tuple[SizedEmbedding, ...], idempotency: Idempotency | None
) -> GroupOrder:
    """Return the running request's order of several jobs."""
    tenant = current_tenant()
    options = JobOptions(
        endpoint=surface.name,
        priority=priority_of(None, tenant.priorities),
        idempotency=idempotency,
        validate_ms=_validate_ms(),
    )
    return GroupOrder(tenant, sized, options, tuple(new_id(surface.id_prefix) for _ in sized))


def _validate_ms() -> float:
    taken_s: float = monotonic() - g.started_s
    return round(taken_s * 1000, 3)
