"""Composition root of CPU workers: webhooks, batch ticks and the janitor, as Celery tasks on
threads. No torch.
"""

import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import structlog
from celery import Celery
from prometheus_client import start_http_server

from engine.grammar import Grammars
from engine.registry import load_manifest
from engine.tokenizer import Tokenizer
from ops.logs import Event, configure_logging
from ops.metrics import BatchMetrics, WebhookMetrics, WorkerMetrics, new_registry
from ops.settings import Settings
from queueing.admission import Admission
from queueing.batch_store import BatchStore
from queueing.clock import SystemClock
from queueing.deliveries import DeliveryLog
from queueing.endpoints import EndpointStore
from queueing.errors import StaleLease
from queueing.files import FileStore
from queueing.job import BATCH_QUEUE, JANITOR_QUEUE, WEBHOOK_QUEUE, Lease, task_of_queue
from queueing.model_routes import ModelRoutes, RouteChange, RouteWatch
from queueing.queue import JobQueue, QueueLimits
from queueing.served_model import ServedModel, ServedModels
from queueing.store import connect
from queueing.switches import SwitchBoard, SwitchWatch
from queueing.tenants import Tenant, TenantStore
from queueing.webhook_signature import WebhookSecret
from queueing.webhook_url import UrlPolicy
from workers.batch_lines import BatchLines, LinePolicy, TickLimits
from workers.batches import BatchTicker
from workers.celery_config import consume_from, make_celery, worker_options
from workers.drain import Drain
from workers.file_sweep import FileSweep
from workers.intake import Intake
from workers.janitor import Janitor
from workers.leases import LeaseKeeper, LeaseRenewer
from workers.standby import Standby, log_flip
from workers.webhook_client import WebhookClient
from workers.webhook_lanes import Lanes
from workers.webhook_receivers import Receivers
from workers.webhooks import RetrySchedule, WebhookDeliverer

Work = Callable[[Lease, str], None]

_OTHER_CONNECTIONS = 16  # claims, renewals, and what is left between two calls


class CpuTasks:
    """Runs one leased job a call and lets go of its lease.

    The work itself finishes or releases the job. Work that raises leaves the lease to run out: the
    job comes again, after the lease's length.
    """

    def __init__(self, intake: Intake, works: dict[str, Work]) -> None:
        self._intake = intake
        self._works = works
        self._log = structlog.stdlib.get_logger(__name__)

    def register(self, app: Celery) -> None:
        """Make one Celery task a queue."""

        def run(task: Any, job_id: str) -> None:  # Celery binds the task to a plain function only
            self._run(Lease(job_id, task.request.queue, task.request.fence))

        for queue in self._works:
            app.task(name=task_of_queue(queue), bind=True)(run)

    def _run(self, lease: Lease) -> None:
        claim = self._intake.held(lease.tag)
        if claim is None:
            return  # the lease was lost before a thread was free
        try:
            with structlog.contextvars.bound_contextvars(job_id=lease.job_id, fence=lease.fence):
                self._works[lease.queue](lease, claim.request)
        except StaleLease:
            self._log.info(Event.RESULT_REFUSED, job_id=lease.job_id, fence=lease.fence)
        finally:
            self._intake.forget(lease)


def run_cpu_worker(settings: Settings, name: str | None = None) -> int:
    """Run CPU work until a signal; return the exit status."""
    configure_logging("cpu", settings.log_level)
    worker = f"{name or 'cpu'}@{socket.gethostname()}"
    limits = QueueLimits(**settings.queue_limits())
    client = connect(settings.redis_url, max_connections=settings.cpu_slots + _OTHER_CONNECTIONS)
    jobs = JobQueue(client, limits, prefix=settings.key_prefix)
    intake = Intake(jobs, f"{worker}.{secrets.token_hex(4)}", slots=settings.cpu_slots)
    registry = new_registry()
    files = FileStore(client, settings.data_dir, limits, prefix=settings.key_prefix)
    batches = BatchStore(client, limits, prefix=settings.key_prefix)
    file_sweep = FileSweep(files, batches, settings.data_dir)
    janitor = Janitor(jobs, [file_sweep.sweep_when_due])
    tick_limits = TickLimits(
        max_lines=settings.max_batch_lines, max_line_bytes=settings.max_body_bytes
    )
    policy_of = _line_policies(settings, client)
    admission = Admission(client, prefix=settings.key_prefix)
    lines = BatchLines(files, batches, admission, policy_of, tick_limits)
    ticker = BatchTicker(jobs, batches, files, lines, BatchMetrics(registry), tick_limits)
    works: dict[str, Work] = {
        JANITOR_QUEUE: lambda lease, _request: janitor.run(lease),
        BATCH_QUEUE: lambda lease, _request: ticker.tick(lease),
        WEBHOOK_QUEUE: _deliverer(settings, client, jobs, WebhookMetrics(registry)).deliver,
    }
    app = make_celery("promptmill.cpu", settings.redis_url, intake)
    consume_from(app, list(works))
    CpuTasks(intake, works).register(app)
    Drain(intake, settings.grace_s).install()
    threading.Thread(target=janitor.insist, name="janitor", daemon=True).start()
    renewer = LeaseRenewer(intake, settings.renew_s, on_lost=lambda _lease: None)
    tell = WorkerMetrics(registry).draining.labels(worker).set
    keeper = LeaseKeeper(renewer, _standby(settings, client, intake, tell))
    keeper.start()
    if settings.metrics_port:
        start_http_server(settings.metrics_port, "127.0.0.1", registry)
    celery_worker = app.Worker(pool="threads", **worker_options(worker, settings.cpu_slots))
    celery_worker.start()
    keeper.stop()
    return int(celery_worker.exitcode or 0)


def _standby(
    settings: Settings, client: "redis.Redis", intake: Intake, tell: Callable[[float], None]
) -> Standby:
    switches = SwitchWatch(SwitchBoard(client, prefix=settings.key_prefix), log_flip)
    # What is handed back is given up where it next asks the queue.
    return Standby(intake, switches, settings.grace_s, tell=tell, drop=lambda _lease: None)


def _deliverer(
    settings: Settings, client: "redis.Redis", jobs: JobQueue, metrics: WebhookMetrics
) -> WebhookDeliverer:
    limits, prefix = QueueLimits(**settings.queue_limits()), settings.key_prefix
    policy = UrlPolicy.of(
        allow_http=settings.webhook_allow_http,
        allow_networks=settings.webhook_allow_networks,
        allowed_ports=settings.webhook_allow_ports,
    )
    secret = settings.webhook_secret
    receivers = Receivers(
        EndpointStore(client, limits, prefix=prefix),
        DeliveryLog(client, limits, prefix=prefix),
        Lanes(settings.cpu_slots),
        WebhookSecret.parse(secret.get_secret_value()) if secret else None,
    )
    http = WebhookClient(policy, settings.webhook_timeout_s, SystemClock())
    return WebhookDeliverer(jobs, http, receivers, metrics, RetrySchedule())


def _line_policies(settings: Settings, client: "redis.Redis") -> Callable[[str], LinePolicy]:
    tenants = TenantStore(client, prefix=settings.key_prefix)
    watch = RouteWatch(ModelRoutes(client, prefix=settings.key_prefix), _log_route)
    models = ServedModels(
        (_served_model(folder, settings.default_max_tokens) for folder in settings.models),
        watch.used_for,
    )

    def policy_of(name: str) -> LinePolicy:
        tenant = tenants.get(name) or Tenant(name)
        return LinePolicy(tenant, models.among(tenant.models))

    return policy_of


def _log_route(change: RouteChange) -> None:
    structlog.stdlib.get_logger(__name__).info(
        Event.SWITCH_FLIPPED,
        switch=f"use_model {change.model}",
        before=change.before,
        now=change.now,
    )


def _served_model(folder: Path, default_max_tokens: int) -> ServedModel:
    manifest = load_manifest(folder)
    encoder = Tokenizer.load(folder)
    return ServedModel(
        manifest.name, manifest.context_length, default_max_tokens, encoder, Grammars(encoder)
    )
