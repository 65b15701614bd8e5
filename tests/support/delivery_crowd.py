"""Many events for one receiver, delivered in real time by as many threads as a large worker has.

Every attempt is remembered. The retries' delays are a few seconds, so that all is over in minutes.
"""

import queue
import ssl
import threading
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from ops.metrics import WebhookMetrics
from queueing.clock import SystemClock
from queueing.deliveries import DeliveryLog
from queueing.endpoints import EndpointStore
from queueing.job import WEBHOOK_QUEUE, Job, JobResult, JobState, Outcome
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from queueing.webhook_url import UrlPolicy
from tests.support.cpu_worker import cpu_worker
from tests.support.deliveries import SECRET
from tests.support.receiver import Received, Receiver
from tests.support.waiting import wait_until
from workers.webhook_client import Attempt, OutgoingEvent, WebhookClient
from workers.webhook_lanes import Lanes
from workers.webhook_receivers import Receivers
from workers.webhooks import RetrySchedule, WebhookDeliverer

SLOTS = 200  # one receiver gets a quarter of them
TIMEOUT_S = 15.0
FIRST_DELAY_S = 2
SCHEDULE_S = (0, FIRST_DELAY_S, *[5] * 20)
_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Told:
    """All requests that brought one event, in the order they came."""

    event_id: str
    requests: list[Received]

    @property
    def timestamps_s(self) -> list[int]:
        """When each was signed."""
        return [int(request.headers["webhook-timestamp"]) for request in self.requests]


class DeliveryCrowd:
    """A queue of events and the worker that delivers them to one loopback port."""

    def __init__(self, url: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        client = connect(url)
        self._url = url
        # A lease outlasts an attempt, since nobody renews it here.
        self.queue = JobQueue(client, QueueLimits(lease_ms=60_000))
        self.endpoints = EndpointStore(client)
        self.log = DeliveryLog(client)
        policy = UrlPolicy.of(allow_http=True, allow_networks=["127.0.0.0/8"], allowed_ports=[port])
        self._client = _RememberingClient(
            policy, TIMEOUT_S, SystemClock(), tls=tls, resolver=lambda _host, _port: ["127.0.0.1"]
        )
        self._deliverer = WebhookDeliverer(
            self.queue,
            self._client,
            Receivers(self.endpoints, self.log, Lanes(SLOTS), SECRET),
            WebhookMetrics(CollectorRegistry()),
            RetrySchedule(SCHEDULE_S),
        )

    def end_jobs(
        self, count: int, webhook_url: str | None = None, *, pause_s: float = 0.0
    ) -> list[str]:
        """Complete so many jobs, one every `pause_s`; return the ids of their events."""
        for number in range(count):
            threading.Event().wait(pause_s)
            job = Job(f"job_{number:04}", "generate.m", "{}", webhook_url=webhook_url)
            self.queue.enqueue(job)
            (claim,) = self.queue.claim("generate.m", "engine", limit=1)
            self.queue.finish(Outcome(claim.lease, JobResult(JobState.COMPLETED)))
        return [f"evt_{number:04}" for number in range(count)]

    def delivering(self) -> AbstractContextManager[None]:
        """Deliver until the block ends."""
        work = self._deliverer.deliver
        return cpu_worker(self._url, self.queue, WEBHOOK_QUEUE, work, slots=SLOTS)

    def await_attempts(self, count: int) -> list[Attempt]:
        """Return the next so many attempts, in the order they ended."""
        return [self._client.attempts.get(timeout=_LIMIT_S) for _ in range(count)]

    def await_end(self, state: JobState, count: int) -> None:
        """Wait until so many deliveries ended so."""
        wait_until(lambda: self.num_ended(state) == count, limit_s=_LIMIT_S)

    def num_ended(self, state: JobState) -> int:
        """Return how many deliveries ended so."""
        return self.queue.totals(WEBHOOK_QUEUE).get(state.value, 0)

    def told(self, server: Receiver) -> list[Told]:
        """Return what a receiver was told, event by event, and forget it."""
        by_id: dict[str, list[Received]] = {}
        while not server.arrivals.empty():
            request = server.arrivals.get()
            by_id.setdefault(request.headers["webhook-id"], []).append(request)
        return [Told(event_id, requests) for event_id, requests in sorted(by_id.items())]


class _RememberingClient(WebhookClient):
    """The client itself, and a record of what each attempt came to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.attempts: queue.SimpleQueue[Attempt] = queue.SimpleQueue()

    def post(self, url: str, event: OutgoingEvent) -> Attempt:
        attempt = super().post(url, event)
        self.attempts.put(attempt)
        return attempt


def results_of(attempts: list[Attempt]) -> Counter[str]:
    """Count attempts by how they ended."""
    return Counter(attempt.result.value for attempt in attempts)
