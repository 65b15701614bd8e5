"""Webhook deliveries: claim in hand, one attempt, then done, later or given up.

Owns the schedule of retries and what each outcome means; waiting is data, a release with a delay,
so that a retry tomorrow outlives every process. At least once: a worker that dies between POST and
finish leaves the lease to run out, and the receiver gets the same id again. Must not know HTTP
beyond an Attempt, nor Redis beyond the queue's verbs. The caller keeps the lease renewed.
"""

import time
import zlib
from dataclasses import dataclass, replace
from typing import assert_never

import structlog

from ops.logs import Event as LogEvent
from ops.metrics import WebhookMetrics
from queueing.errors import FailureCode, StaleLease
from queueing.job import JobResult, JobState, Lease, Outcome
from queueing.outbox import Delivery, decode_delivery, encode_delivery
from queueing.queue import JobQueue
from queueing.webhook_signature import WebhookSecret
from workers.webhook_client import Attempt, AttemptResult, Event, WebhookClient
from workers.webhook_lanes import Lanes

# Delay before each attempt, from the one before: three days in all (Standard Webhooks 1.0.0).
STANDARD_SCHEDULE_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
MAX_RETRY_AFTER_S = 86_400.0
MAX_BLOCKED = 4
JITTER = 0.2

_GONE = 410

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver took the event."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt follows after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """No attempt follows; `reason` is for the operator and the tenant."""

    reason: str


Decision = Delivered | Retry | GivenUp


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """What an installation decides about its deliveries: who signs and when to try again."""

    secret: WebhookSecret
    schedule_s: tuple[float, ...] = STANDARD_SCHEDULE_S

    def after(self, webhook_id: str, delivery: Delivery, attempt: Attempt) -> Decision:
        """Say what follows an attempt; `delivery` already counts it."""
        if attempt.result is AttemptResult.SUCCESS:
            return Delivered()
        if attempt.status == _GONE:
            return GivenUp("the receiver is gone (410)")
        if delivery.attempts >= len(self.schedule_s) or delivery.blocked >= MAX_BLOCKED:
            return GivenUp(
                f"no success in {delivery.attempts} attempts, the last one: {attempt.result}"
            )
        delay_s = self.schedule_s[delivery.attempts] * _jitter(webhook_id, delivery.attempts)
        wish_s = min(attempt.retry_after_s or 0.0, MAX_RETRY_AFTER_S)
        return Retry(max(delay_s, wish_s))


class WebhookDeliverer:
    """Runs the jobs of the webhook queue; called by as many threads as the worker has slots."""

    def __init__(
        self,
        queue: JobQueue,
        client: WebhookClient,
        rules: DeliveryRules,
        lanes: Lanes,
        metrics: WebhookMetrics,
    ) -> None:
        self._queue = queue
        self._client = client
        self._rules = rules
        self._lanes = lanes
        self._metrics = metrics

    def deliver(self, lease: Lease, request: str) -> None:
        """Make one attempt and settle the lease; a lease that was lost meanwhile is no error."""
        delivery = decode_delivery(request)
        wait = self._lanes.enter(delivery.receiver)
        if wait is not None:
            self._queue.release(lease, delay_s=wait.seconds)
            return
        attempt = self._attempt(lease.job_id, delivery)
        counted = replace(
            delivery,
            attempts=delivery.attempts + 1,
            blocked=delivery.blocked + (attempt.result is AttemptResult.BLOCKED),
        )
        decision = self._rules.after(lease.job_id, counted, attempt)
        self._report(lease, counted, attempt, decision)
        try:
            self._settle(lease, counted, decision)
        except StaleLease:
            # Somebody newer holds the delivery and will settle it; the receiver sees one id twice.
            log.info(LogEvent.RESULT_REFUSED, job_id=lease.job_id, fence=lease.fence)

    def _attempt(self, webhook_id: str, delivery: Delivery) -> Attempt:
        event = Event(webhook_id, delivery.body.encode(), (self._rules.secret,))
        begun = time.monotonic()
        hung = False
        try:
            attempt = self._client.post(delivery.url, event)
            hung = attempt.result is AttemptResult.TIMEOUT
        finally:
            duration_s = time.monotonic() - begun
            self._lanes.leave(delivery.receiver, duration_s=duration_s, hung=hung)
        return attempt

    def _report(
        self, lease: Lease, delivery: Delivery, attempt: Attempt, decision: Decision
    ) -> None:
        self._metrics.attempts.labels(attempt.result.value).inc()
        self._metrics.attempt_duration_seconds.observe(attempt.duration_s)
        is_delivered = isinstance(decision, Delivered)
        log.info(
            LogEvent.WEBHOOK_DELIVERED if is_delivered else LogEvent.WEBHOOK_FAILED,
            job_id=lease.job_id,
            attempt=delivery.attempts,
            outcome=attempt.result.value,
            status=attempt.status,
            duration_ms=round(attempt.duration_s * 1000),
            will_retry=isinstance(decision, Retry),
        )

    def _settle(self, lease: Lease, delivery: Delivery, decision: Decision) -> None:
        """Finish or hand back; raises StaleLease."""
        match decision:
            case Delivered():
                self._queue.finish(Outcome(lease, JobResult(JobState.COMPLETED)))
                self._metrics.messages.labels("delivered").inc()
            case Retry(delay_s):
                self._queue.release(lease, delay_s=delay_s, request=encode_delivery(delivery))
            case GivenUp(reason):
                failure = JobResult.failure(
                    JobState.FAILED, FailureCode.WEBHOOK_UNDELIVERABLE, reason
                )
                self._queue.finish(Outcome(lease, failure))
                self._metrics.messages.labels("undeliverable").inc()
            case _:
                assert_never(decision)


def _jitter(webhook_id: str, attempt: int) -> float:
    """Stretch a delay so that deliveries that failed together do not come back together.

    Drawn from the id, which is random, so that nothing here is.
    """
    share = zlib.crc32(f"{webhook_id} {attempt}".encode()) / 0xFFFF_FFFF
    return 1 + JITTER * share
