"""What a tenant sees of itself: its jobs by state, what it may do, and what it has used.

Owns GET /v1/jobs and GET /v1/tenant. Changes nothing: tenants are the operator's business.
"""

from typing import Literal

from flask import Blueprint, Response, jsonify
from pydantic import BaseModel

from api.auth import current_tenant
from api.openai.lists import list_object, read_page_query
from api.schemas import job_object
from queueing.errors import FailureCode, RequestError
from queueing.job import JobState, Priority
from queueing.job_list import JobList
from queueing.tenants import Tier

_PAGE = 20
_MAX_PAGE = 100


class LimitsObject(BaseModel):
    """What may be asked for in a time; null is no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens_per_day: int | None


class JobUsageObject(BaseModel):
    """A tenant's prompt jobs: how many came, wait and run now, and ended in each way."""

    submitted: int
    queued: int
    running: int
    completed: int
    failed: int
    expired: int
    cancelled: int
    dead: int


class TenantUsageObject(BaseModel):
    """What was used since the tenant was made. `tokens` are those read and generated."""

    jobs: JobUsageObject
    tokens: int


class TenantObject(BaseModel):
    """Whose key this is and what it may do. `models` null is every served model."""

    object: Literal["tenant"] = "tenant"
    name: str
    tier: Tier
    priorities: list[Priority]
    models: list[str] | None
    limits: LimitsObject
    usage: TenantUsageObject


def tenant_blueprint(jobs: JobList) -> Blueprint:
    """Return the routes that tell a tenant of itself."""
    blueprint = Blueprint("tenant", __name__, url_prefix="/v1")

    @blueprint.get("/jobs")
    def list_jobs() -> Response:
        """List jobs in one state, newest first."""
        query, filters = read_page_query("state", default_limit=_PAGE, max_limit=_MAX_PAGE)
        page = jobs.page(current_tenant().name, _state(filters), query)
        data = [job_object(record).model_dump(mode="json") for record in page.items]
        return jsonify(list_object(data, page.has_more))

    @blueprint.get("/tenant")
    def retrieve() -> Response:
        """Tell whose key this is, what it may do, and what it has used."""
        tenant = current_tenant()
        usage = jobs.usage(tenant.name)
        live = {state.value: count for state, count in jobs.num_live(tenant.name).items()}
        counts = {name: usage.get(name, 0) for name in JobUsageObject.model_fields} | live
        told = TenantObject(
            name=tenant.name,
            tier=tenant.tier,
            priorities=[priority for priority in Priority if priority in tenant.priorities],
            models=None if tenant.models is None else sorted(tenant.models),
            limits=LimitsObject(
                requests_per_minute=tenant.limits.requests_per_min,
                tokens_per_minute=tenant.limits.tokens_per_min,
                tokens_per_day=tenant.limits.tokens_per_day,
            ),
            usage=TenantUsageObject(jobs=JobUsageObject(**counts), tokens=usage.get("tokens", 0)),
        )
        return jsonify(told.model_dump(mode="json"))

    return blueprint


def _state(filters: dict[str, str]) -> JobState:
    try:
        return JobState(filters.get("state", ""))
    except ValueError:
        message = f"state: give one of {', '.join(JobState)}"
    raise RequestError(FailureCode.INVALID_REQUEST, message, "state")
