"""Every Prometheus metric of promptmill: name, labels, buckets, and what it answers.

Owns the collectors, grouped by subject; a process makes the groups it speaks for on one registry.
Imports nothing of ours and knows no numbers: whoever sees an event observes it.

The API runs as one gunicorn process with threads and serves its own registry, as each worker does.
The client library's multiprocess mode was not taken: it needs a folder wiped at the right moment
and leaves out exemplars and process metrics, and its gauges need a rule for adding up; a second API
process is another target to scrape.

Labels hold closed sets only: `route` is the rule and never the path, `model` a registered name or
"other", `priority` and the rest are enums of the code. Durations are in seconds.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

HTTP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LATENCY_BUCKETS = (
    *(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45),
    *(60, 120, 300, 600, 1800, 3600, 14400, 86400),
)
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
)
NEXT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
STEP_BUCKETS = tuple(0.001 * 2**power for power in range(12))
BATCH_DURATION_BUCKETS = (1, 5, 30, 60, 300, 1_800, 3_600, 14_400, 43_200, 86_400)
BATCH_BUCKETS = tuple(2**power for power in range(9))
STEP_TOKENS_BUCKETS = tuple(2**power for power in range(14))
TOKENS_BUCKETS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))[:16]


def new_registry() -> CollectorRegistry:
    """Return a registry that already tells this process's CPU, memory, files and Python."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


class HttpMetrics:
    """Requests to the API."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "promptmill_http_requests",
            "Requests answered.",
            ("route", "method", "code"),
            registry=registry,
        )
        self.request_duration_seconds = Histogram(
            "promptmill_http_request_duration_seconds",
            "Time from the request's first line to its answer's last byte.",
            ("route", "method"),
            buckets=HTTP_BUCKETS,
            registry=registry,
        )
        self.requests_in_progress = Gauge(
            "promptmill_http_requests_in_progress", "Requests being answered.", registry=registry
        )
        self.admission_rejections = Counter(
            "promptmill_admission_rejections",
            "Jobs refused at the door: queue_full, store_unavailable, draining.",
            ("reason", "priority"),
            registry=registry,
        )
        self.auth_failures = Counter(
            "promptmill_auth_failures",
            "Requests without a good key.",
            ("reason",),
            registry=registry,
        )


class JobMetrics:
    """What becomes of jobs, counted by whoever writes their state."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.submitted = Counter(
            "promptmill_jobs_submitted",
            "Jobs accepted.",
            ("model", "priority", "endpoint"),
            registry=registry,
        )
        self.finished = Counter(
            "promptmill_jobs_finished",
            "Jobs ended: completed, failed, expired, cancelled, dead.",
            ("model", "priority", "outcome"),
            registry=registry,
        )
        self.latency_seconds = Histogram(
            "promptmill_job_latency_seconds",
            "Time from arrival to the end.",
            ("model", "priority"),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.queue_wait_seconds = Histogram(
            "promptmill_job_queue_wait_seconds",
            "Time from arrival to the claim.",
            ("model", "priority"),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.retries = Counter(
            "promptmill_job_retries",
            "Jobs that had to be queued again: lease_expired, engine_error, shutdown.",
            ("model", "reason"),
            registry=registry,
        )
        self.deadline_misses = Counter(
            "promptmill_job_deadline_misses",
            "Deadlines missed, by where the job was: queued, claimed, prefill, decode, delivery.",
            ("model", "priority", "stage"),
            registry=registry,
        )
        self.stale_completions = Counter(
            "promptmill_job_stale_completions",
            "Results refused because a newer claim holds the job.",
            ("model",),
            registry=registry,
        )


class QueueMetrics:
    """The queues as they are; set by one process only, or sums count them twice."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.depth = Gauge(
            "promptmill_queue_depth", "Jobs waiting.", ("model", "priority"), registry=registry
        )
        self.oldest_age_seconds = Gauge(
            "promptmill_queue_oldest_age_seconds",
            "Age of the job that has waited longest; 0 when none waits.",
            ("model", "priority"),
            registry=registry,
        )
        self.fill_ratio = Gauge(
            "promptmill_queue_fill_ratio",
            "How full the queue is, of jobs or of bytes, whichever is more; 1 is full.",
            ("model",),
            registry=registry,
        )
        self.pressure_level = Gauge(
            "promptmill_queue_pressure_level",
            "0, or 1 from 60% on, 2 while bulk is shed, 3 while standard is too, 4 full.",
            ("model",),
            registry=registry,
        )
        self.leased = Gauge(
            "promptmill_jobs_leased", "Jobs that a worker holds.", ("model",), registry=registry
        )

    def clear(self) -> None:
        """Tell nothing: nothing is known."""
        for gauge in (
            self.depth,
            self.oldest_age_seconds,
            self.fill_ratio,
            self.pressure_level,
            self.leased,
        ):
            gauge.clear()


class EngineMetrics:
    """One engine worker's batch, steps, tokens and cache."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.batch_size = self._histogram(
            "promptmill_engine_batch_size", "Sequences in a step.", BATCH_BUCKETS
        )
        self.step_tokens = self._histogram(
            "promptmill_engine_step_tokens", "Tokens computed in a step.", STEP_TOKENS_BUCKETS
        )
        self.step_duration_seconds = self._histogram(
            "promptmill_engine_step_duration_seconds", "Duration of a step.", STEP_BUCKETS
        )
        self.time_per_output_token_seconds = self._histogram(
            "promptmill_time_per_output_token_seconds",
            "Mean time of a generated token after the first.",
            NEXT_TOKEN_BUCKETS,
        )
        self.request_prompt_tokens = self._histogram(
            "promptmill_request_prompt_tokens", "Prompt tokens of a job.", TOKENS_BUCKETS
        )
        self.request_generation_tokens = self._histogram(
            "promptmill_request_generation_tokens", "Generated tokens of a job.", TOKENS_BUCKETS
        )
        self.time_to_first_token_seconds = Histogram(
            "promptmill_time_to_first_token_seconds",
            "Time from the claim to the first generated token.",
            ("model", "priority"),
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.prompt_tokens = self._counter("promptmill_prompt_tokens", "Prompt tokens read.")
        self.generation_tokens = self._counter(
            "promptmill_generation_tokens", "Tokens generated, also of jobs that did not complete."
        )
        self.preemptions = self._counter(
            "promptmill_engine_preemptions", "Sequences put back for want of blocks."
        )
        self.generations_finished = Counter(
            "promptmill_generations_finished",
            "Generations ended: stop, length, cancelled, deadline, error.",
            ("model", "finish_reason"),
            registry=registry,
        )
        self.embeddings_finished = Counter(
            "promptmill_embeddings_finished",
            "Embeddings ended: pooled, cancelled, deadline, error.",
            ("model", "finish_reason"),
            registry=registry,
        )
        self.requests_running = self._gauge(
            "promptmill_engine_requests_running", "Sequences in the batch."
        )
        self.requests_waiting = self._gauge(
            "promptmill_engine_requests_waiting", "Sequences admitted and not in the batch."
        )
        self.kv_cache_used_blocks = self._gauge(
            "promptmill_kv_cache_used_blocks", "KV blocks that sequences hold."
        )
        self.kv_cache_capacity_blocks = self._gauge(
            "promptmill_kv_cache_capacity_blocks", "KV blocks there are."
        )
        self.worker_ready = self._gauge(
            "promptmill_worker_ready", "1 while the worker takes jobs, else 0."
        )
        self.model_info = Gauge(
            "promptmill_model_info",
            "1, with what the model runs on: kernels, types of activations, weights and KV cache.",
            ("worker", "model", "kernels", "dtype", "weights", "kv_dtype"),
            registry=registry,
        )

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, ("model",), buckets=buckets, registry=self._registry)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(name, help_text, ("model",), registry=self._registry)

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(name, help_text, ("worker", "model"), registry=self._registry)


class WorkerMetrics:
    """A worker of either kind."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.draining = Gauge(
            "promptmill_worker_draining",
            "1 while the drain switch keeps the worker from claiming, else 0.",
            ("worker",),
            registry=registry,
        )


class WebhookMetrics:
    """Webhook deliveries."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.attempts = Counter(
            "promptmill_webhook_attempts",
            "Attempts: 2xx, 3xx, 4xx, 5xx, timeout, connection, tls, blocked.",
            ("result",),
            registry=registry,
        )
        self.messages = Counter(
            "promptmill_webhook_messages",
            "Messages that ended: delivered, undeliverable.",
            ("outcome",),
            registry=registry,
        )
        self.attempt_duration_seconds = Histogram(
            "promptmill_webhook_attempt_duration_seconds",
            "Duration of an attempt.",
            buckets=HTTP_BUCKETS,
            registry=registry,
        )


class BatchMetrics:
    """Bulk jobs that ended. Counted by the worker that ended them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = Counter(
            "promptmill_batches",
            "Batches that ended: completed, failed, expired, cancelled.",
            ("status",),
            registry=registry,
        )
        self.requests_finished = Counter(
            "promptmill_batch_requests_finished",
            "Lines of ended batches: completed (output file), failed (error file).",
            ("outcome",),
            registry=registry,
        )
        self.duration_seconds = Histogram(
            "promptmill_batch_duration_seconds",
            "From a batch's creation to its end.",
            buckets=BATCH_DURATION_BUCKETS,
            registry=registry,
        )


class StoreMetrics:
    """Trouble with Redis, as seen from this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.errors = Counter(
            "promptmill_redis_errors",
            "Failed calls: timeout, connection, oom, misconf, readonly, other.",
            ("kind",),
            registry=registry,
        )
