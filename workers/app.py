"""Composition root of CPU workers: webhooks, batch ticks and the janitor, as Celery tasks on threads. No torch."""

import secrets
import socket
from collections.abc import Callable
from typing import Any

import structlog
from celery import Celery
from prometheus_client import start_http_server

from ops.logs import Event, configure_logging
from ops.metrics import WebhookMetrics, new_registry
from ops.settings import Settings
from queueing.errors import StaleLease
from queueing.job import BATCH_QUEUE, JANITOR_QUEUE, WEBHOOK_QUEUE, Lease, task_of_queue
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from workers.celery_config import consume_from, make_celery, worker_options
from workers.drain import Drain
from workers.intake import Intake
from workers.janitor import Janitor
from workers.leases import LeaseKeeper, LeaseRenewer

Work = Callable[[Lease, str], None]


class CpuTasks:
    """Runs one leased job a call and lets go of its lease; the work itself finishes or releases the job.

    Work that raises leaves the lease to run out: the job comes again, after the lease's length.
    """

    def __init__(self, intake: Intake, works: dict[str, Work]) -> None:
        self._intake = intake
        self._works = works
        self._log = structlog.stdlib.get_logger(__name__)

    def register(self, app: Celery) -> None:
        """Make one Celery task a queue."""
        for queue in self._works:
            app.task(self._run, name=task_of_queue(queue), bind=True)

    def _run(self, task: Any, job_id: str) -> None:
        headers = task.request
        lease = Lease(job_id, headers.get("queue"), headers.get("fence"))
        claim = self._intake.held(lease.tag)
        if claim is None:
            return  # the lease was lost before a thread was free
        try:
            with structlog.contextvars.bound_contextvars(job_id=job_id, fence=lease.fence):
                self._works[lease.queue](lease, claim.request)
        except StaleLease:
            self._log.info(Event.RESULT_REFUSED, job_id=job_id, fence=lease.fence)
        finally:
            self._intake.forget(lease)


def run_cpu_worker(settings: Settings, name: str | None = None) -> int:
    """Run CPU work until a signal; return the exit status."""
    configure_logging("cpu", settings.log_level)
    worker = f"{name or 'cpu'}@{socket.gethostname()}"
    jobs = JobQueue(
        connect(settings.redis_url),
        QueueLimits(**settings.queue_limits()),
        prefix=settings.key_prefix,
    )
    intake = Intake(jobs, f"{worker}.{secrets.token_hex(4)}", slots=settings.cpu_slots)
    registry = new_registry()
    janitor = Janitor(jobs)
    app = make_celery("promptmill.cpu", settings.redis_url, intake)
    works: dict[str, Work] = {JANITOR_QUEUE: lambda lease, _request: janitor.run(lease)}
    consume_from(app, list(works))
    CpuTasks(intake, works).register(app)
    Drain(intake, settings.grace_s).install()
    janitor.ensure()
    keeper = LeaseKeeper(LeaseRenewer(intake, settings.renew_s, on_lost=lambda _lease: None))
    keeper.start()
    if settings.metrics_port:
        start_http_server(settings.metrics_port, "127.0.0.1", registry)
    celery_worker = app.Worker(pool="threads", **worker_options(worker, settings.cpu_slots))
    celery_worker.start()
    keeper.stop()
    return int(celery_worker.exitcode or 0)
