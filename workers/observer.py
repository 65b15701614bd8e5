"""EngineObserver: what an engine worker sees, as metrics. Called by the delivery thread; must not
change anything.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from engine.engine import EngineFacts
from engine.plan import Capacity, StepOutput
from ops.metrics import EngineMetrics, JobMetrics, WorkerMetrics
from queueing.job import JobKind, JobResult, JobState, Priority
from workers.engine_job import EngineJob

_REASON_OF_END = {
    JobState.EXPIRED: "deadline",
    JobState.CANCELLED: "cancelled",
    JobState.FAILED: "error",
}


class EngineObserver:
    """Counts and times the steps and jobs of one model on one worker."""

    def __init__(
        self, registry: CollectorRegistry, model: str, worker: str, capacity: Callable[[], Capacity]
    ) -> None:
        self._engine = EngineMetrics(registry)
        self._jobs = JobMetrics(registry)
        self._draining = WorkerMetrics(registry).draining.labels(worker)
        self._model = model
        self._capacity = capacity
        self._gauges = {"worker": worker, "model": model}
        # What every job touches is looked up once: a look-up costs more than a count.
        self._waits = {
            priority: self._jobs.queue_wait_seconds.labels(model, priority.value)
            for priority in Priority
        }
        self._prompt_tokens = self._engine.request_prompt_tokens.labels(model)

    def loaded(self, facts: EngineFacts) -> None:
        """Say what the model runs on."""
        info = {
            "kernels": facts.kernels,
            "dtype": facts.dtype,
            "weights": facts.weights,
            "kv_dtype": facts.kv_dtype,
        }
        self._engine.model_info.labels(**self._gauges, **info).set(1)

    def ready(self, *, is_ready: bool) -> None:
        """Say whether the worker takes jobs."""
        self._engine.worker_ready.labels(**self._gauges).set(int(is_ready))

    def draining(self, value: float) -> None:
        """Say with 1 that the drain switch keeps the worker from taking jobs, with 0 that not."""
        self._draining.set(value)
        self.ready(is_ready=not value)

    def step(self, output: StepOutput) -> None:
        """Count one step."""
        engine, model = self._engine, self._model
        num_tokens = output.num_prompt_tokens + output.num_decode_tokens
        engine.batch_size.labels(model).observe(output.batch_size)
        engine.step_tokens.labels(model).observe(num_tokens)
        engine.step_duration_seconds.labels(model).observe(output.duration_s)
        engine.prompt_tokens.labels(model).inc(output.num_prompt_tokens)
        engine.generation_tokens.labels(model).inc(output.num_decode_tokens)
        engine.preemptions.labels(model).inc(len(output.preempted_ids))
        capacity = self._capacity()
        used = capacity.total_blocks - capacity.free_blocks
        engine.requests_running.labels(**self._gauges).set(capacity.running)
        engine.requests_waiting.labels(**self._gauges).set(capacity.waiting)
        engine.kv_cache_used_blocks.labels(**self._gauges).set(used)
        engine.kv_cache_capacity_blocks.labels(**self._gauges).set(capacity.total_blocks)

    def claimed(self, job: EngineJob) -> None:
        """Count the wait of a job that was claimed."""
        wait_s = max(0, job.claim.claimed_ms - job.claim.arrival_ms) / 1000
        self._waits[job.claim.priority].observe(wait_s)

    def generated(self, job: EngineJob, result: JobResult) -> None:
        """Count the tokens and times of a job that left the engine."""
        if job.claim.kind is JobKind.EMBED:
            self._embedded(result)
            return
        engine, model, clock = self._engine, self._model, job.clock
        reason = _REASON_OF_END.get(result.state, "")
        if result.choices:
            reason = result.choices[0].finish_reason
        engine.generations_finished.labels(model, reason).inc()
        self._prompt_tokens.observe(result.usage.prompt_tokens)
        engine.request_generation_tokens.labels(model).observe(result.usage.completion_tokens)
        if clock.first_token is None or clock.last_token is None:
            return
        first = engine.time_to_first_token_seconds.labels(model, job.claim.priority.value)
        first.observe(clock.first_token - clock.received)
        if job.num_steps > 1:
            mean_s = (clock.last_token - clock.first_token) / (job.num_steps - 1)
            engine.time_per_output_token_seconds.labels(model).observe(mean_s)

    def _embedded(self, result: JobResult) -> None:
        reason = _REASON_OF_END.get(result.state, "pooled")
        self._engine.embeddings_finished.labels(self._model, reason).inc()
        self._prompt_tokens.observe(result.usage.prompt_tokens)

    def refused(self) -> None:
        """Count a result that a newer claim made void."""
        self._jobs.stale_completions.labels(self._model).inc()

    def missed(self, job: EngineJob) -> None:
        """Count a deadline that passed while the worker had the job."""
        labels = (self._model, job.claim.priority.value, job.clock.stage())
        self._jobs.deadline_misses.labels(*labels).inc()
