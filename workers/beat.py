"""Celery beat as the janitor's back-up: it sends no messages, it makes sure that the janitor's job
is there and sweeps.

Any number of beats may run: everything they do may be done twice.
"""

from datetime import timedelta
from typing import Any

import structlog
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import schedule

from ops.logs import Event, configure_logging
from ops.settings import Settings
from queueing.errors import StoreUnavailable
from queueing.job import JANITOR_QUEUE, task_of_queue
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from workers.celery_config import configure_celery
from workers.janitor import Janitor

SCHEDULER = "workers.beat:JanitorScheduler"
_EVERY_S = 10.0


class BeatApp(Celery):
    """The Celery app of a beat; its scheduler finds the janitor here."""

    janitor: Janitor


class JanitorScheduler(Scheduler):
    """A beat whose one entry is the sweep."""

    @property
    def producer(self) -> None:  # type: ignore[override]  # nothing is sent, so nothing is connected
        """Have none."""

    def setup_schedule(self) -> None:
        """Have one entry, kept in memory: it is due at the start, and every ten seconds."""
        self.add(
            name="sweep",
            task=task_of_queue(JANITOR_QUEUE),
            schedule=schedule(_EVERY_S),
            last_run_at=self.app.now() - timedelta(seconds=_EVERY_S),
        )

    def apply_async(self, entry: Any, *_args: Any, **_options: Any) -> None:
        """Sweep in this process; a store that is away is asked again next time."""
        log = structlog.stdlib.get_logger(__name__)
        self.reserve(entry)
        assert isinstance(self.app, BeatApp), "this scheduler sweeps, it sends nothing"
        janitor = self.app.janitor
        try:
            janitor.ensure()
            log.info(Event.JANITOR_RAN, num_jobs=janitor.sweep())
        except StoreUnavailable as error:
            log.warning(Event.STORE_LOST, reason=error.kind)


def run_beat(settings: Settings) -> None:
    """Sweep every ten seconds until a signal."""
    configure_logging("beat", settings.log_level)
    app = BeatApp("promptmill.beat", set_as_current=False)
    configure_celery(app, settings.redis_url)
    limits = QueueLimits(**settings.queue_limits())
    app.janitor = Janitor(JobQueue(connect(settings.redis_url), limits, prefix=settings.key_prefix))
    app.Beat(scheduler_cls=SCHEDULER, loglevel=settings.log_level, quiet=True).run()
