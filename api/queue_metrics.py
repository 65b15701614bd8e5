"""The queues in an API process's metrics: read from the store at each scrape.

Only the store knows what waits and what has ended, so nothing here is counted by this process.
While the store is away the queues are absent from the answer rather than stale.
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ops.metrics import QueueMetrics, StoreMetrics
from queueing.errors import StoreUnavailable
from queueing.job import generate_queue
from queueing.queue import JobQueue


class QueueScrape:
    """Sets the queue gauges of every served model."""

    def __init__(
        self, queue: JobQueue, models: Sequence[str], gauges: QueueMetrics, store: StoreMetrics
    ) -> None:
        self._queue = queue
        self._models = models
        self._gauges = gauges
        self._store = store

    def refresh(self) -> None:
        """Read the queues; leave no gauge when the store does not answer."""
        try:
            for model in self._models:
                self._set(model)
        except StoreUnavailable as error:
            self._store.errors.labels(kind=error.kind).inc()
            self._gauges.clear()

    def _set(self, model: str) -> None:
        queue = generate_queue(model)
        depth, pressure = self._queue.depth(queue), self._queue.pressure(queue)
        for priority, num_jobs in depth.ready.items():
            self._gauges.depth.labels(model=model, priority=priority.value).set(num_jobs)
        for priority, age_s in depth.oldest_age_s.items():
            self._gauges.oldest_age_seconds.labels(model=model, priority=priority.value).set(age_s)
        self._gauges.leased.labels(model=model).set(depth.leased)
        self._gauges.fill_ratio.labels(model=model).set(pressure.fill)
        self._gauges.pressure_level.labels(model=model).set(pressure.level)


class QueueTotals(Collector):
    """The counters that the queue's own scripts keep, as one family."""

    def __init__(self, queue: JobQueue, models: Iterable[str], registry: CollectorRegistry) -> None:
        self._queue = queue
        self._models = tuple(models)
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Name the family without asking the store."""
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        """Read the counters; nothing when the store does not answer."""
        family = self._family()
        try:
            for model in self._models:
                for event, count in self._queue.totals(generate_queue(model)).items():
                    family.add_metric((model, event), count)
        except StoreUnavailable:
            return
        yield family

    def _family(self) -> CounterMetricFamily:
        return CounterMetricFamily(
            "promptmill_queue_jobs",
            "What became of jobs: submitted, claimed, lost, stale, and each terminal state.",
            labels=("model", "event"),
        )
