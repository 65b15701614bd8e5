"""Composition root of an engine worker: one model, one engine, one Celery worker around them."""

import os
import queue
import secrets
import socket
from pathlib import Path

import structlog
from celery import Celery
from prometheus_client import start_http_server

from engine.config import ComputeType, EngineConfig
from engine.loading import load_engine
from engine.registry import load_manifest, verify
from engine.sequence import SamplingParams, Sequence
from engine.tokenizer import Tokenizer
from ops.logs import Event, configure_logging
from ops.metrics import new_registry
from ops.settings import Settings
from queueing.job import GENERATE_TASK, generate_queue
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from workers.celery_config import consume_from, make_celery, worker_options
from workers.delivery import Delivery
from workers.drain import Drain
from workers.intake import Intake
from workers.leases import LeaseRenewer
from workers.observer import EngineObserver
from workers.pool import EngineParts, EnginePool
from workers.serving import ServingLoop, SteppingEngine

_WARM_UP_TEXT = "The quick brown fox"


class EngineApp(Celery):
    """The Celery app of an engine worker; the pool finds its parts here."""

    engine_parts: EngineParts


def run_engine_worker(settings: Settings, folder: Path, name: str | None = None) -> int:
    """Serve one model folder until a signal; return the exit status."""
    configure_logging("engine", settings.log_level)
    log = structlog.stdlib.get_logger(__name__)
    manifest = load_manifest(folder)
    verify(folder, manifest)
    tokenizer = Tokenizer.load(folder)
    engine = load_engine(folder, _engine_config(settings))
    _warm_up(engine, tokenizer)
    log.info(Event.MODEL_LOADED, model=manifest.name, num_blocks=engine.capacity().total_blocks)

    worker = f"{name or 'engine'}@{socket.gethostname()}"
    jobs = JobQueue(
        connect(settings.redis_url), QueueLimits(**settings.queue_limits()), prefix=settings.key_prefix
    )
    intake = Intake(
        jobs,
        f"{worker}.{secrets.token_hex(4)}",
        slots=settings.slots,
        urgent_slots=max(1, settings.slots // 8),
    )
    registry = new_registry()
    observer = EngineObserver(registry, manifest.name, worker, engine.capacity)
    app = make_celery("promptmill.engine", settings.redis_url, intake)
    consume_from(app, [generate_queue(manifest.name)])
    app.task(_generate, name=GENERATE_TASK)
    app.engine_parts = _parts(settings, engine, tokenizer, intake, observer)
    Drain(intake, settings.grace_s).install()
    if settings.metrics_port:
        start_http_server(settings.metrics_port, "127.0.0.1", registry)
    celery_worker = app.Worker(pool=EnginePool, **worker_options(worker, settings.slots))
    observer.ready(True)
    celery_worker.start()
    observer.ready(False)
    return int(celery_worker.exitcode or 0)


def _parts(
    settings: Settings,
    engine: SteppingEngine,
    tokenizer: Tokenizer,
    intake: Intake,
    observer: EngineObserver,
) -> EngineParts:
    events = queue.SimpleQueue()
    serving = ServingLoop(engine, events, coalesce_s=settings.coalesce_ms / 1000)
    delivery = Delivery(
        intake.queue, events, observer, abort=serving.abort, on_finished=intake.forget
    )
    renewer = LeaseRenewer(
        intake,
        settings.renew_s,
        on_lost=lambda lease: delivery.lose(lease.tag),
        progress=lambda: serving.num_turns,
    )
    return EngineParts(intake, tokenizer, serving, delivery, renewer, settings.watchdog_s)


def _engine_config(settings: Settings) -> EngineConfig:
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return EngineConfig(
        block_size=settings.block_size,
        num_blocks=settings.kv_blocks,
        memory_budget_bytes=round(settings.memory_fraction * free_bytes),
        max_sequences=settings.slots,
        max_step_tokens=settings.step_tokens,
        dtype=ComputeType(settings.dtype),
        num_threads=settings.engine_threads,
    )


def _warm_up(engine: SteppingEngine, tokenizer: Tokenizer) -> None:
    """Run one known prompt, so that the first job does not pay for what is made lazily."""
    prompt_ids = tokenizer.encode(_WARM_UP_TEXT)
    engine.add(Sequence("warm-up", prompt_ids, SamplingParams(max_tokens=4, ignore_eos=True)))
    num_tokens = 0
    while engine.has_work:
        num_tokens += len(engine.step().tokens)
    assert num_tokens == 4, "the model does not answer"


def _generate(job_id: str) -> None:
    """Be the task Celery knows; EnginePool runs the job without calling it."""
    msg = f"{job_id} was run outside the engine pool"
    raise AssertionError(msg)
