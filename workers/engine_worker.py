"""The engine worker around an engine: intake, serving, delivery, and the Celery worker that drives
them.

A composition root that is handed its engine: workers/gpu.py makes one of a model folder. Imports no
torch.
"""

import queue
import secrets
import socket
from dataclasses import dataclass, field

import redis
from celery import Celery
from prometheus_client import start_http_server

from engine.engine import EngineFacts
from engine.grammar import Grammars
from engine.sequence import Pooling
from engine.tokenizer import Tokenizer
from ops.metrics import new_registry
from ops.settings import Settings
from queueing.failpoints import Failpoints
from queueing.job import EMBED_TASK, GENERATE_TASK, generate_queue
from queueing.kept_answers import KeptAnswers
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from queueing.switches import SwitchBoard, SwitchWatch
from queueing.token_stream import TokenStreams
from workers.answer_cache import AnswerCache
from workers.celery_config import configure_celery, consume_from, worker_options
from workers.delivery import Delivery
from workers.drain import Drain
from workers.intake import Intake
from workers.leases import LeaseRenewer
from workers.observer import EngineObserver
from workers.pool import EngineParts, EnginePool
from workers.serving import Event, ServingLoop, SteppingEngine
from workers.standby import Standby, log_flip
from workers.stream_writer import StreamWriter


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a worker serves: a model's name, its engine, warm, its tokenizer, and how it pools.

    `digest` is equal exactly where the same bytes compute in the same types.
    """

    name: str
    engine: SteppingEngine
    tokenizer: Tokenizer
    digest: str
    pooling: Pooling = Pooling.LAST
    facts: EngineFacts = field(default_factory=EngineFacts)


class EngineApp(Celery):
    """The Celery app of an engine worker; the pool finds its parts here."""

    engine_parts: EngineParts


def serve(model: LoadedModel, settings: Settings, name: str | None = None) -> int:
    """Serve a model until a signal; return the exit status."""
    worker = f"{name or 'engine'}@{socket.gethostname()}"
    client = connect(settings.redis_url)
    jobs = JobQueue(
        client,
        QueueLimits(**settings.queue_limits()),
        prefix=settings.key_prefix,
        failpoints=Failpoints(settings.failpoint),
    )
    intake = Intake(jobs, f"{worker}.{secrets.token_hex(4)}", slots=settings.slots)
    registry = new_registry()
    observer = EngineObserver(registry, model.name, worker, model.engine.capacity)
    observer.loaded(model.facts)
    app = EngineApp("promptmill.engine", set_as_current=False)
    configure_celery(app, settings.redis_url, intake)
    consume_from(app, [generate_queue(model.name)])
    for task in (GENERATE_TASK, EMBED_TASK):
        app.task(name=task)(_run_in_pool)
    app.engine_parts = _parts(settings, model, intake, client, observer)
    Drain(intake, settings.grace_s).install()
    if settings.metrics_port:
        start_http_server(settings.metrics_port, "127.0.0.1", registry)
    options = worker_options(worker, settings.slots) | {"task_events": settings.task_events}
    celery_worker = app.Worker(pool=EnginePool, **options)
    observer.ready(is_ready=True)
    celery_worker.start()
    observer.ready(is_ready=False)
    return int(celery_worker.exitcode or 0)


def _parts(
    settings: Settings,
    model: LoadedModel,
    intake: Intake,
    client: "redis.Redis",
    observer: EngineObserver,
) -> EngineParts:
    streams = TokenStreams(client, prefix=settings.key_prefix)
    switches = SwitchWatch(SwitchBoard(client, prefix=settings.key_prefix), log_flip)
    kept = KeptAnswers(client, prefix=settings.key_prefix)
    answers = AnswerCache(kept, switches, model.digest)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    serving = ServingLoop(model.engine, events, coalesce_s=settings.coalesce_ms / 1000)
    delivery = Delivery(
        intake.queue,
        StreamWriter(streams),
        events,
        observer,
        abort=serving.abort,
        on_finished=intake.forget,
    )
    delivery.on_made(answers.note)
    renewer = LeaseRenewer(
        intake,
        settings.renew_s,
        on_lost=lambda lease: delivery.lose(lease.tag),
        progress=lambda: serving.num_turns,
    )
    standby = Standby(
        intake,
        switches,
        settings.grace_s,
        tell=observer.draining,
        drop=lambda lease: delivery.lose(lease.tag),
    )
    return EngineParts(
        intake,
        model.tokenizer,
        Grammars(model.tokenizer),
        model.pooling,
        serving,
        delivery,
        renewer,
        switches,
        answers,
        standby,
        settings.watchdog_s,
    )


def _run_in_pool(job_id: str) -> None:
    """Be the task Celery knows; EnginePool runs the job without calling it."""
    msg = f"{job_id} was run outside the engine pool"
    raise AssertionError(msg)
