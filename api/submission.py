"""Submission: the one way from an accepted request into the queue, for every surface of the API.

Owns what a submit leaves behind besides the job: counters and a log line. A request that raises has
left nothing; one that returns is in the store. Knows no route's body and no HTTP.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import structlog

from api.drain import Drain, DrainingError
from api.limits import RateLimited, TenantRates
from ops.logs import Event
from ops.metrics import HttpMetrics, JobMetrics
from queueing.errors import (
    FailureCode,
    PromptmillError,
    QueueFull,
    QueueShed,
    RequestError,
    StoreUnavailable,
)
from queueing.job import Enqueued, Idempotency, Job, Priority, generate_queue, new_id
from queueing.queue import JobQueue
from queueing.served_model import SizedEmbedding, SizedRequest
from queueing.tenants import Tenant
from queueing.webhook_url import UrlPolicy, check_webhook_url
from queueing.wire import encode_request

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a request asks for around its prompt. `endpoint` names the surface in the metrics.

    `validate_ms` is what reading and checking the request took. `job_id` is for surfaces that name
    the job before it is queued, `is_silent` for those whose caller waits for the end.
    """

    endpoint: str
    priority: Priority
    job_id: str | None = None
    deadline_s: float | None = None
    must_meet_deadline: bool = False
    is_silent: bool = False
    webhook_url: str | None = None
    metadata: dict[str, str] | None = None
    idempotency: Idempotency | None = None
    validate_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class JobWebhooks:
    """Where the URLs that jobs name may lead, and whether there is a secret to sign with."""

    policy: UrlPolicy
    has_secret: bool

    def check(self, url: str) -> None:
        """Raise RequestError unless a job may name this URL.

        Without a secret every delivery would be given up, days after the job was accepted.
        """
        check_webhook_url(url, self.policy)
        if not self.has_secret:
            raise RequestError(
                FailureCode.WEBHOOKS_NOT_CONFIGURED,
                "this installation has no PROMPTMILL_WEBHOOK_SECRET to sign a job's webhook with;"
                " register an endpoint, which has a secret of its own, or ask the operator",
                "webhook_url",
            )


class Submission:
    """Puts jobs into the queue. Thread-safe."""

    def __init__(
        self,
        queue: JobQueue,
        rates: TenantRates,
        webhooks: JobWebhooks,
        drain: Drain,
        http: HttpMetrics,
        jobs: JobMetrics,
    ) -> None:
        self._queue = queue
        self._rates = rates
        self._webhooks = webhooks
        self._drain = drain
        self._http = http
        self._jobs = jobs

    def submit(
        self, tenant: Tenant, sized: SizedRequest | SizedEmbedding, options: JobOptions
    ) -> Enqueued:
        """Return the job that stands for a request: a new one, or that of an equal earlier request.

        Raises RequestError, RateLimited, QueueFull, StoreUnavailable and DrainingError.
        """
        if options.webhook_url is not None:
            self._webhooks.check(options.webhook_url)
        job = _job_of(tenant, sized, options)
        with self._admitted(tenant, sized.request.model, sized.cost, options):
            enqueued = self._queue.enqueue(job, options.idempotency)
        self._count_acceptance(sized.request.model, options, [job], [enqueued])
        return enqueued

    def submit_group(
        self,
        tenant: Tenant,
        group: Sequence[SizedEmbedding],
        options: JobOptions,
        job_ids: Sequence[str],
    ) -> list[Enqueued]:
        """Return the jobs that stand for the parts of one request, all of the same model.

        It counts as one request. Raises what submit does, and then leaves no part in the queue,
        unless it may be repeated: the repeat finds the parts that were accepted. If the store goes
        away in between, those that are there end with their deadline.
        """
        jobs = [
            _job_of(tenant, one, replace(options, job_id=job_id))
            for one, job_id in zip(group, job_ids, strict=True)
        ]
        model = group[0].request.model
        with self._admitted(tenant, model, sum(one.cost for one in group), options):
            try:
                enqueued = self._enqueue_group(jobs, options.idempotency)
            except PromptmillError:
                if options.idempotency is None:
                    self._take_back(jobs)
                raise
        self._count_acceptance(model, options, jobs, enqueued)
        return enqueued

    def _enqueue_group(
        self, jobs: Sequence[Job], idempotency: Idempotency | None
    ) -> list[Enqueued]:
        if idempotency is None:
            return self._queue.enqueue_many(jobs)
        # A blank can't be in a client's own key, so that no part meets another request.
        return [
            self._queue.enqueue(job, replace(idempotency, key=f"{idempotency.key} {index}"))
            for index, job in enumerate(jobs)
        ]

    def _take_back(self, jobs: Sequence[Job]) -> None:
        with suppress(StoreUnavailable):
            for job in jobs:
                self._queue.cancel(job.id, job.tenant)

    @contextmanager
    def _admitted(
        self, tenant: Tenant, model: str, cost: int, options: JobOptions
    ) -> Iterator[None]:
        """Let a request come as far as the queue, or count why it does not."""
        tenant.check_model(model)
        tenant.check_priority(options.priority)
        try:
            self._drain.refuse_new_work()
            self._rates.take(tenant, cost)
            yield
        except (RateLimited, QueueFull, StoreUnavailable, DrainingError) as error:
            self._count_rejection(error, options.priority)
            raise

    def _count_acceptance(
        self,
        model: str,
        options: JobOptions,
        jobs: Sequence[Job],
        enqueued: Sequence[Enqueued],
    ) -> None:
        structlog.contextvars.bind_contextvars(job_id=enqueued[0].job_id)
        # A lost reply makes the client repeat the script, which then finds its own job.
        num_accepted = sum(
            one.created or one.job_id == job.id for one, job in zip(enqueued, jobs, strict=True)
        )
        if num_accepted:
            labels = {"priority": options.priority.value, "endpoint": options.endpoint}
            self._jobs.submitted.labels(model=model, **labels).inc(num_accepted)
            log.info(Event.JOB_ACCEPTED, model=model, num_jobs=num_accepted, **labels)

    def _count_rejection(
        self, error: RateLimited | QueueFull | StoreUnavailable | DrainingError, priority: Priority
    ) -> None:
        match error:
            case RateLimited(what="requests"):
                reason = "rate_limit"
            case RateLimited():
                reason = "token_budget"
            case QueueShed():
                reason = "queue_soft"
            case QueueFull():
                reason = "queue_full"
            case StoreUnavailable():
                reason = "store_unavailable"
            case _:
                reason = "draining"
        self._http.admission_rejections.labels(reason=reason, priority=priority.value).inc()


def _job_of(tenant: Tenant, sized: SizedRequest | SizedEmbedding, options: JobOptions) -> Job:
    return Job(
        id=options.job_id or new_id("job_"),
        queue=generate_queue(sized.request.model),
        request=encode_request(sized.request),
        kind=sized.request.kind,
        tenant=tenant.name,
        priority=options.priority,
        cost=sized.cost,
        weight=tenant.tier.weight,
        deadline_s=options.deadline_s,
        must_meet_deadline=options.must_meet_deadline,
        is_silent=options.is_silent,
        webhook_url=options.webhook_url,
        metadata=None if options.metadata is None else json.dumps(options.metadata),
        validate_ms=options.validate_ms,
    )
