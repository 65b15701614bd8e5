"""The Celery settings all our workers share. Must not know what a worker runs.

The broker URL stays redis://. An app that consumes jobs has our transport behind it, by class path;
one that only controls or watches (Flower, which accepts no other scheme) keeps the stock one.
"""

import gc
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_ready
from kombu import Exchange, Queue

from queueing.job import is_job_queue
from queueing.transport import Intake
from workers.task_events import GatheredEvents

TRANSPORT = "queueing.transport:Transport"


def make_celery(name: str, redis_url: str, intake: Intake | None = None) -> Celery:
    """Return an app that consumes through `intake`; without one it can only control and watch."""
    app = Celery(name, set_as_current=False)
    configure_celery(app, redis_url, intake)
    return app


def configure_celery(app: Celery, redis_url: str, intake: Intake | None = None) -> None:
    """Give an app, of whatever class, our settings."""
    app.conf.update(
        broker_url=redis_url,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # wait for the store as long as it takes
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_acks_on_failure_or_timeout=True,
        task_create_missing_queues=False,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )
    if intake is not None:
        app.events_cls = GatheredEvents  # type: ignore[assignment]  # Celery takes a class as well
        app.conf.update(broker_transport=TRANSPORT, broker_transport_options={"intake": intake})
        worker_ready.connect(_spare_what_stays)
    setup_logging.connect(_keep_our_logging)


def consume_from(app: Celery, queues: list[str]) -> None:
    """Declare the job queues a worker takes from; they need no binding in the broker."""
    assert all(is_job_queue(queue) for queue in queues), queues
    app.conf.task_queues = [
        Queue(queue, Exchange(""), routing_key=queue, no_declare=True) for queue in queues
    ]


def worker_options(name: str, slots: int) -> dict[str, Any]:
    """Return the options of Celery's worker that are the same for all of ours."""
    return {
        "hostname": name,
        "concurrency": slots,
        "without_gossip": True,
        "without_mingle": True,  # a known reconnect fault, and a slower start
        "task_events": True,
        "quiet": True,
    }


def _keep_our_logging(**_signal: Any) -> None:
    """Be connected: Celery then leaves logging alone."""


def _spare_what_stays(**_signal: Any) -> None:
    """Keep the garbage collector from what is there when a worker is ready, for it stays: going
    through it again and again was a fifth of what a job that does nothing cost.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
