"""What waits to be delivered and to whom nothing is, in an API process's metrics: read from the
store at each scrape.

Here and not in the workers that deliver: the backlog matters most when none of them is alive.
While the store is away the families are absent rather than stale.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queueing.endpoints import EndpointStore
from queueing.errors import StoreUnavailable
from queueing.job import WEBHOOK_QUEUE
from queueing.queue import JobQueue


class WebhookBacklog(Collector):
    """Deliveries that are queued, waiting for their next attempt, or under way; and the endpoints
    that get none any more.
    """

    def __init__(
        self, queue: JobQueue, endpoints: EndpointStore, registry: CollectorRegistry
    ) -> None:
        self._queue = queue
        self._endpoints = endpoints
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Name the families without asking the store."""
        return [_pending(), _oldest(), _disabled()]

    def collect(self) -> Iterator[Metric]:
        """Read the queue; nothing when the store does not answer."""
        try:
            depth = self._queue.depth(WEBHOOK_QUEUE)
            num_disabled = self._endpoints.num_disabled()
        except StoreUnavailable:
            return
        pending, oldest, disabled = _pending(), _oldest(), _disabled()
        pending.add_metric((), sum(depth.ready.values()) + depth.later + depth.leased)
        oldest.add_metric((), max(depth.oldest_age_s.values()))
        disabled.add_metric((), num_disabled)
        yield from (pending, oldest, disabled)


def _pending() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "promptmill_webhook_pending", "Deliveries that have not ended, those for later included."
    )


def _oldest() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "promptmill_webhook_oldest_pending_age_seconds",
        "Age of the oldest delivery that is due and not under way; 0 when there is none.",
    )


def _disabled() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "promptmill_webhook_endpoints_disabled",
        "Endpoints that failing deliveries have disabled and nobody has enabled again.",
    )
