"""The job and everything said about it: frozen records, no Redis.

    queued ──claim──> running ──finish──> completed | failed | expired
      │ ^               │  │
      │ └──release──────┘  └─lease ran out: queued again, or dead after max_losses
      └──cancel / deadline──> cancelled | expired        (cancel also ends a running job)

completed, failed, expired, cancelled and dead are terminal: the first to arrive stays. A prompt job
is of one of two kinds, by what is made of the prompt; a webhook delivery and a batch tick are jobs
of other queues, claimed and leased by the same scripts.
"""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from queueing.errors import FailureCode

WEBHOOK_QUEUE = "webhooks"
BATCH_QUEUE = "batches"
JANITOR_QUEUE = "janitor"
JANITOR_ID = "janitor_0"
DEFAULT_TENANT = "default"

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def new_id(prefix: str) -> str:
    """Return `prefix` followed by 128 random bits in base 62 (22 characters)."""
    return prefix + encode_base62(secrets.randbits(128))


def encode_base62(number: int) -> str:
    """Write a number below 2**128 as 22 base-62 digits."""
    digits = []
    for _ in range(22):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def generate_queue(model: str) -> str:
    """Name of the queue that holds a model's prompt jobs."""
    return _GENERATE + model


def model_of_queue(queue: str) -> str:
    """Name of the model whose prompt jobs a queue holds."""
    return queue.removeprefix(_GENERATE)


_GENERATE = "generate."
_TASKS = {
    WEBHOOK_QUEUE: "promptmill.deliver",
    BATCH_QUEUE: "promptmill.tick",
    JANITOR_QUEUE: "promptmill.sweep",
}
GENERATE_TASK = "promptmill.generate"
EMBED_TASK = "promptmill.embed"


class JobKind(StrEnum):
    """What is made of a prompt: texts, or one vector. Both kinds wait in their model's queue."""

    GENERATE = "generate"
    EMBED = "embed"


def is_generate_queue(queue: str) -> bool:
    """Tell the queues that hold prompt jobs; theirs is the priority that users choose."""
    return queue.startswith(_GENERATE)


def is_job_queue(queue: str) -> bool:
    """Tell the queues of jobs from those of Celery itself."""
    return queue in _TASKS or is_generate_queue(queue)


def task_of_queue(queue: str, kind: JobKind = JobKind.GENERATE) -> str:
    """Return the name of the Celery task that runs a queue's jobs of this kind."""
    return _TASKS.get(queue, EMBED_TASK if kind is JobKind.EMBED else GENERATE_TASK)


class Priority(StrEnum):
    """How urgent a job is; the order of the members is the order of service."""

    REALTIME = "realtime"
    STANDARD = "standard"
    BULK = "bulk"

    @property
    def level(self) -> int:
        """0 is the most urgent."""
        return _LEVELS[self]

    @property
    def patience_ms(self) -> int:
        """How long such a job may wait before it counts as overdue."""
        return _PATIENCE_MS[self]


_LEVELS = {priority: level for level, priority in enumerate(Priority)}
_PATIENCE_MS = {
    Priority.REALTIME: 1_000,
    Priority.STANDARD: 30_000,
    Priority.BULK: 3_600_000,
}


class JobState(StrEnum):
    """Where a job is; see the diagram above."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def is_terminal(self) -> bool:
        """True once nothing can change any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of accepted work. `request` is the JSON its worker reads (see wire.py); immutable
    once enqueued. `kind` tells prompt jobs apart, and says nothing of jobs of other queues.

    `deadline_s` counts from arrival. `cost` is what serving it is expected to take, in tokens.
    `weight` is its tenant's share of the service beside others. `not_before_s` delays the first
    claim. `max_losses` 0 means the job is never given up. `must_meet_deadline` asks for a refusal
    when the deadline is out of reach already. The end of a silent job is no event for webhooks.
    """

    id: str
    queue: str
    request: str
    kind: JobKind = JobKind.GENERATE
    tenant: str = DEFAULT_TENANT
    priority: Priority = Priority.STANDARD
    cost: int = 1
    weight: float = 1.0
    deadline_s: float | None = None
    not_before_s: float = 0.0
    max_losses: int | None = None
    webhook_url: str | None = None
    metadata: str | None = None
    batch: "BatchLine | None" = None
    validate_ms: float = 0.0
    must_meet_deadline: bool = False
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class BatchLine:
    """The place of a job in a batch: whose line it is, under which custom_id, and the tick's fence
    that sends it.
    """

    batch_id: str
    line: int
    custom_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's promise that requests with this key are one request.

    `digest` tells its bodies apart. A request that `begins` takes the key over from an earlier one;
    `ttl_ms` None is the lifetime of the queue's limits.
    """

    route: str
    key: str
    digest: str
    begins: bool = False
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job that stands for a request, and whether this call created it."""

    job_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's exclusive, expiring claim on a job; `fence` rises at every claim and only the
    newest may finish.
    """

    job_id: str
    queue: str
    fence: int

    @property
    def tag(self) -> str:
        """Tell this claim from every other one, also of the same job."""
        return f"{self.job_id}/{self.fence}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A leased job as its worker gets it. Instants are milliseconds of the store's clock.

    `remaining_ms` is the time to the deadline at the moment of the claim; None when there is none.
    `must_run_alone` marks a job that may be what killed its earlier workers.
    """

    lease: Lease
    request: str
    priority: Priority
    tenant: str
    due_ms: int
    arrival_ms: int
    claimed_ms: int
    remaining_ms: int | None
    losses: int
    attempts: int
    must_run_alone: bool = False
    kind: JobKind = JobKind.GENERATE


@dataclass(frozen=True, slots=True)
class Choice:
    """One generated text.

    `finish_reason` is stop or length; `logprobs` follows OpenAI's shape when asked for.
    """

    index: int
    text: str
    finish_reason: str
    logprobs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and made; `cached_tokens` of the prompt came from the prefix cache."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Tokens read and made."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job did not complete."""

    code: FailureCode
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """The one final outcome of a job.

    `stages` maps a stage's name to its duration in milliseconds. `vector` is what an embedding came
    to: float32 numbers, little-endian, in base64.
    """

    state: JobState
    choices: tuple[Choice, ...] = ()
    vector: str | None = None
    usage: Usage = Usage()
    error: JobError | None = None
    model: str = ""
    stages: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def failure(
        state: JobState, code: FailureCode, message: str, param: str | None = None
    ) -> "JobResult":
        """Make the result of a job that did not complete."""
        return JobResult(state=state, error=JobError(code, message, param))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result on its way into the queue, with the lease that entitles to it.

    `stage` says where an expired job was when its deadline passed: claimed, prefill or decode.
    """

    lease: Lease
    result: JobResult
    stage: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is known of a job now. `result` is None until it ended, and again when its text has
    expired.

    Instants are seconds of the store's clock. `result_expired` tells an expired text from one that
    never was.
    """

    id: str
    queue: str
    tenant: str
    state: JobState
    priority: Priority
    arrival_s: float
    deadline_s: float | None
    started_s: float | None
    finished_s: float | None
    losses: int
    attempts: int
    webhook_url: str | None
    metadata: str | None
    stages: dict[str, float]
    result: JobResult | None
    result_expired: bool
