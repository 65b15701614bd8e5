"""A real queue with a real deliverer on it, on a clock of their own."""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from ops.metrics import WebhookMetrics
from queueing.clock import ManualClock, SystemClock
from queueing.deliveries import DeliveryLog
from queueing.endpoints import Endpoint, EndpointForm, EndpointStore, EventType
from queueing.job import (
    DEFAULT_TENANT,
    WEBHOOK_QUEUE,
    Claim,
    Job,
    JobError,
    JobResult,
    JobState,
    Outcome,
)
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.webhook_signature import WebhookSecret, verify
from queueing.webhook_url import UrlPolicy
from tests.support.receiver import Received
from workers.webhook_client import WebhookClient
from workers.webhook_lanes import Lanes
from workers.webhook_receivers import Receivers
from workers.webhooks import STANDARD_SCHEDULE_S, RetrySchedule, WebhookDeliverer

SECRET = WebhookSecret(b"s" * 32)


class BenchClock(ManualClock):
    """Stands still until it is advanced, or told to run."""

    def __init__(self, start_ms: int) -> None:
        super().__init__(start_ms)
        self._runs_since_s: float | None = None

    def now_ms(self) -> int:
        """Return the instant it was advanced to, and the time it has run on top."""
        run_s = 0.0 if self._runs_since_s is None else time.monotonic() - self._runs_since_s
        return super().now_ms() + round(run_s * 1000)

    def run(self) -> None:
        """Go with the time from now on, as what is put back for later has to come again."""
        self._runs_since_s = time.monotonic()


class DeliveryBench:
    """Receivers may listen on the given loopback ports."""

    def __init__(
        self,
        url: str,
        ports: Iterable[int],
        *,
        timeout_s: float = 5.0,
        slots: int = 4,
        schedule_s: tuple[float, ...] = STANDARD_SCHEDULE_S,
    ) -> None:
        self.clock = BenchClock(SystemClock().now_ms())
        client = connect(url)
        self.queue = JobQueue(client, clock=self.clock)
        self.endpoints = EndpointStore(client, clock=self.clock)
        self.log = DeliveryLog(client, clock=self.clock)
        self.lanes = Lanes(slots)
        self._registry = CollectorRegistry()
        policy = UrlPolicy.of(
            allow_http=True, allow_networks=["127.0.0.0/8"], allowed_ports=list(ports)
        )
        self.deliverer = WebhookDeliverer(
            self.queue,
            WebhookClient(policy, timeout_s, self.clock),
            Receivers(self.endpoints, self.log, self.lanes, SECRET),
            WebhookMetrics(self._registry),
            RetrySchedule(schedule_s),
        )

    def end_a_job(
        self, webhook_url: str | None = None, name: str = "1", tenant: str = DEFAULT_TENANT
    ) -> str:
        """Complete the job job_<name>; return the id of its event."""
        job = Job(f"job_{name}", "generate.m", "{}", tenant=tenant, webhook_url=webhook_url)
        self.queue.enqueue(job)
        (claim,) = self.queue.claim("generate.m", "engine", limit=1)
        self.queue.finish(Outcome(claim.lease, JobResult(JobState.COMPLETED)))
        return f"evt_{name}"

    def register(self, url: str, *event_types: EventType) -> Endpoint:
        """Register an endpoint of the default tenant for some events."""
        form = EndpointForm(name="receiver", url=url, event_types=event_types)
        endpoint, _ = self.endpoints.create(DEFAULT_TENANT, form)
        return endpoint

    def claim_due(self) -> list[Claim]:
        """Lease what is due of the webhook queue."""
        return self.queue.claim(WEBHOOK_QUEUE, "cpu", limit=100)

    def deliver_due(self) -> int:
        """Run what is due; return how much that was."""
        claims = self.claim_due()
        for claim in claims:
            self.deliverer.deliver(claim.lease, claim.request)
        return len(claims)

    def disabled_reason(self, endpoint: Endpoint) -> str | None:
        """Return why an endpoint is disabled now; None while it is not."""
        found = self.endpoints.get(endpoint.id, endpoint.tenant)
        assert found is not None
        return found.disabled_reason

    def verified_id(self, received: Received, secret: WebhookSecret = SECRET) -> str:
        """Return the event id of a request whose signature is good now."""
        return verify(secret, received.headers, received.body, self.clock.now_ms() / 1000)

    def deliver_over(self, delays_s: Iterable[float]) -> None:
        """Let the schedule's delays pass one after the other and run what is due after each."""
        for delay_s in delays_s:
            self.clock.advance(ms=round(delay_s * 1_200) + 1)
            self.deliver_due()

    def deliver_for(self, seconds: int, step_s: int) -> None:
        """Let time pass in steps and run what is due after each."""
        for _ in range(seconds // step_s):
            self.clock.advance(ms=step_s * 1000)
            self.deliver_due()

    def num_completed(self) -> int:
        """Return how many deliveries succeeded."""
        return self.queue.totals(WEBHOOK_QUEUE).get("completed", 0)

    def state(self, event_id: str) -> JobState:
        """Return where a delivery is."""
        record = self.queue.get(event_id, DEFAULT_TENANT)
        assert record is not None
        return record.state

    def error(self, event_id: str) -> JobError | None:
        """Return why a delivery failed."""
        record = self.queue.get(event_id, DEFAULT_TENANT)
        assert record is not None
        assert record.result is not None
        return record.result.error

    def counted(self, name: str, **labels: str) -> float:
        """Return one sample of the webhook metrics."""
        return self._registry.get_sample_value(f"promptmill_webhook_{name}", labels) or 0.0
