"""Flower over our queues: its own server, with queue lengths read from JobQueue.

Flower asks a broker class for the lengths of Redis lists; our queues are sorted sets, so the class
it finds is replaced by one that answers with them, by model and priority. Task rows, revoke and
worker pages are Flower's own. It listens on loopback and asks for a name and a password: user
`promptmill`, the API key.
"""

import asyncio
import sys
from functools import partial
from typing import Any

from flower.app import Flower
from flower.command import extract_settings
from flower.options import options
from flower.urls import settings as flower_settings
from flower.utils import broker as flower_broker

from ops.logs import configure_logging
from ops.settings import Settings
from queueing.job import is_generate_queue
from queueing.queue import JobQueue
from queueing.store import connect
from workers.celery_config import make_celery

USER = "promptmill"
_COLUMNS = "name,uuid,state,received,started,runtime,worker"


class JobQueueBroker(flower_broker.Redis):  # type: ignore[misc]  # flower ships no types
    """Answers Flower's question for queue lengths."""

    def __init__(self, jobs: JobQueue, broker_url: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(broker_url, *args, **kwargs)
        self._jobs = jobs

    async def queues(self, _names: list[str]) -> list[dict[str, Any]]:
        """Return a row a queue, and one a priority of a model's, whoever consumes them now."""
        return await asyncio.to_thread(self._rows)

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for queue in self._jobs.queues():
            depth = self._jobs.depth(queue)
            rows.append({"name": queue, "messages": sum(depth.ready.values()) + depth.later})
            if is_generate_queue(queue):
                rows += [
                    {"name": f"{queue}/{priority.value}", "messages": number}
                    for priority, number in depth.ready.items()
                ]
        return rows


def run_flower(settings: Settings) -> None:
    """Serve Flower until a signal."""
    configure_logging("flower", settings.log_level)
    jobs = JobQueue(connect(settings.redis_url), prefix=settings.key_prefix)
    # The seam: Flower looks this name up when it needs lengths, and offers no setting for it.
    flower_broker.Redis = partial(JobQueueBroker, jobs)
    key = settings.resolved_api_key()
    if key is None:
        sys.exit("Flower asks for a password: set PROMPTMILL_API_KEY or PROMPTMILL_API_KEY_FILE")
    options.port = settings.flower_port
    options.address = "127.0.0.1"
    options.basic_auth = [f"{USER}:{key}"]
    options.tasks_columns = _COLUMNS
    options.purge_offline_workers = 60
    options.max_tasks = 20_000
    extract_settings()
    app = make_celery("promptmill.flower", settings.redis_url)
    flower = Flower(capp=app, options=options, **flower_settings)
    try:
        flower.start_http_server()
        flower.start()
    except (KeyboardInterrupt, SystemExit):
        flower.stop()
