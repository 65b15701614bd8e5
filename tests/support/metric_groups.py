"""Every group of metrics there is, for tests that look at all of them."""

from ops.metrics import (
    BatchMetrics,
    EngineMetrics,
    HttpMetrics,
    JobMetrics,
    QueueMetrics,
    StoreMetrics,
    WebhookMetrics,
    WorkerMetrics,
)

METRIC_GROUPS = (
    HttpMetrics,
    JobMetrics,
    QueueMetrics,
    EngineMetrics,
    WorkerMetrics,
    WebhookMetrics,
    BatchMetrics,
    StoreMetrics,
)
