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

from ops.logs import Event
from ops.metrics import WebhookMetrics
from queueing.deliveries import AttemptEnd, AttemptNote, Verdict
from queueing.errors import FailureCode, StaleLease
from queueing.job import JobResult, JobState, Lease, Outcome
from queueing.outbox import Delivery, decode_delivery, encode_delivery
from queueing.queue import JobQueue
from workers.webhook_client import Attempt, AttemptResult, OutgoingEvent, WebhookClient
from workers.webhook_lanes import Wait
from workers.webhook_receivers import Destination, Receivers, Unreachable

# Delay before each attempt, from the one before: three days in all (Standard Webhooks 1.0.0).
STANDARD_SCHEDULE_S = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
MAX_RETRY_AFTER_S = 86_400.0
MAX_BLOCKED = 4
JITTER = 0.2

_GONE = 410
# With these a receiver speaks of its load, not of this one event.
_THROTTLING = (429, 502, 503, 504)
_MAX_SILENCE_S = 3_600.0

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
    """No attempt follows; `reason` is for the owner. If final, no other event will fare better."""

    reason: str
    is_final: bool = False


Decision = Delivered | Retry | GivenUp


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """When to try again: delays before each attempt, the first included."""

    delays_s: tuple[float, ...] = STANDARD_SCHEDULE_S

    def after(self, delivery: Delivery, attempt: Attempt) -> Decision:
        """Say what follows an attempt; `delivery` already counts it."""
        if attempt.result is AttemptResult.SUCCESS:
            return Delivered()
        if attempt.status == _GONE:
            return GivenUp("the receiver is gone (410)", is_final=True)
        if delivery.blocked >= MAX_BLOCKED:
            return GivenUp("the receiver's address is not allowed", is_final=True)
        if delivery.is_test or delivery.attempts >= len(self.delays_s):
            return GivenUp(
                f"no success in {delivery.attempts} attempts, the last one: {attempt.result}"
            )
        delay_s = self.delays_s[delivery.attempts] * _jitter(delivery)
        wish_s = min(attempt.retry_after_s or 0.0, MAX_RETRY_AFTER_S)
        return Retry(max(delay_s, wish_s))


class WebhookDeliverer:
    """Runs the jobs of the webhook queue; called by as many threads as the worker has slots."""

    def __init__(
        self,
        queue: JobQueue,
        client: WebhookClient,
        receivers: Receivers,
        metrics: WebhookMetrics,
        schedule: RetrySchedule,
    ) -> None:
        self._queue = queue
        self._client = client
        self._receivers = receivers
        self._metrics = metrics
        self._schedule = schedule

    def deliver(self, lease: Lease, request: str) -> None:
        """Make one attempt and settle the lease; a lease that was lost meanwhile is no error."""
        delivery = decode_delivery(request)
        try:
            match self._receivers.enter(delivery):
                case Wait(seconds):
                    self._queue.release(lease, delay_s=seconds)
                case Unreachable(reason):
                    self._settle(lease, delivery, GivenUp(reason))
                case Destination() as destination:
                    self._try(lease, delivery, destination)
        except StaleLease:
            # Somebody newer holds the delivery and will settle it; the receiver sees one id twice.
            log.info(Event.RESULT_REFUSED, job_id=lease.job_id, fence=lease.fence)

    def _try(self, lease: Lease, delivery: Delivery, destination: Destination) -> None:
        attempt = self._attempt(delivery, destination)
        counted = replace(
            delivery,
            attempts=delivery.attempts + 1,
            blocked=delivery.blocked + (attempt.result is AttemptResult.BLOCKED),
        )
        decision = self._schedule.after(counted, attempt)
        duration_ms = round(attempt.duration_s * 1000)
        note = AttemptNote(attempt.result.value, attempt.status, duration_ms)
        disabled = self._receivers.note(
            lease.job_id, counted, note, _verdict(counted, attempt, decision)
        )
        self._metrics.attempts.labels(attempt.result.value).inc()
        self._metrics.attempt_duration_seconds.observe(attempt.duration_s)
        log.info(
            Event.WEBHOOK_DELIVERED if isinstance(decision, Delivered) else Event.WEBHOOK_FAILED,
            job_id=lease.job_id,
            attempt=counted.attempts,
            outcome=attempt.result.value,
            status=attempt.status,
            duration_ms=duration_ms,
            will_retry=isinstance(decision, Retry),
            endpoint_disabled=disabled,
        )
        self._settle(lease, counted, decision)

    def _attempt(self, delivery: Delivery, destination: Destination) -> Attempt:
        event = OutgoingEvent(delivery.event_id, delivery.body.encode(), destination.signers)
        begun = time.monotonic()
        hung = False
        try:
            attempt = self._client.post(destination.url, event)
            hung = attempt.result is AttemptResult.TIMEOUT
        finally:
            self._receivers.leave(destination, duration_s=time.monotonic() - begun, hung=hung)
        return attempt

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


def _verdict(delivery: Delivery, attempt: Attempt, decision: Decision) -> Verdict:
    if delivery.is_test:
        return Verdict(AttemptEnd.TESTED)
    match decision:
        case Delivered():
            return Verdict(AttemptEnd.DELIVERED)
        case Retry():
            asked_s = attempt.retry_after_s if attempt.status in _THROTTLING else None
            return Verdict(AttemptEnd.FAILED, silence_s=min(asked_s or 0.0, _MAX_SILENCE_S))
        case GivenUp(reason, is_final):
            return Verdict(AttemptEnd.GIVEN_UP, disable_reason=reason if is_final else "")
        case _:
            assert_never(decision)


def _jitter(delivery: Delivery) -> float:
    """Stretch a delay so that deliveries that failed together do not come back together.

    Drawn from the id, which is random, so that nothing here is.
    """
    drawn = zlib.crc32(f"{delivery.event_id} {delivery.attempts}".encode()) / 0xFFFF_FFFF
    return 1 + JITTER * drawn
