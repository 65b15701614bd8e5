"""What can go wrong with a job or its queue: FailureCode (closed, on the wire), the exception tree.

    PromptmillError
    ├── RequestError              the caller's fault; carries a FailureCode and the parameter
    │   └── IdempotencyConflict   same key, other body
    ├── QueueFull                 the bounded queue refuses; carries Retry-After
    │   └── QueueShed             it still takes work, but none of this priority
    ├── StoreUnavailable          Redis is down, hangs or refuses writes
    ├── StorageFull               the disk of files and batches takes no more
    └── StaleLease                somebody newer holds the job; the holder's work is void

A job that was accepted never ends by an exception: it ends in a JobResult whose error carries a
FailureCode.
"""

from enum import StrEnum


class FailureCode(StrEnum):
    """Why a request was refused or a job did not complete.

    Clients match on these; values never change.
    """

    INVALID_REQUEST = "invalid_request"
    INVALID_JSON = "invalid_json"
    INVALID_API_KEY = "invalid_api_key"
    PERMISSION_DENIED = "permission_denied"
    PRIORITY_NOT_ALLOWED = "priority_not_allowed"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    QUOTA_EXCEEDED = "quota_exceeded"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    FILE_TOO_LARGE = "file_too_large"
    INSUFFICIENT_STORAGE = "insufficient_storage"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    STORE_UNAVAILABLE = "store_unavailable"
    DRAINING = "draining"
    INTERNAL_ERROR = "internal_error"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    WORKER_LOST = "worker_lost"
    ENGINE_ERROR = "engine_error"
    OUT_OF_MEMORY = "out_of_memory"
    RESULT_EXPIRED = "result_expired"
    WEBHOOK_UNDELIVERABLE = "webhook_undeliverable"
    INVALID_WEBHOOK_URL = "invalid_webhook_url"
    WEBHOOK_URL_NOT_ALLOWED = "webhook_url_not_allowed"
    WEBHOOKS_NOT_CONFIGURED = "webhooks_not_configured"


class PromptmillError(Exception):
    """Root of every error promptmill raises on purpose."""


class RequestError(PromptmillError):
    """The caller asked for something that can't be done; `param` names the field at fault."""

    def __init__(self, code: FailureCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class IdempotencyConflict(RequestError):
    """The Idempotency-Key was used before with another body."""

    def __init__(self) -> None:
        super().__init__(
            FailureCode.IDEMPOTENCY_CONFLICT,
            "this Idempotency-Key was used with another request body",
        )


class QueueFull(PromptmillError):
    """The queue holds as many jobs as it may; ask again after `retry_after_s` seconds."""

    def __init__(self, queue: str, retry_after_s: int) -> None:
        super().__init__(f"the queue {queue} is full")
        self.retry_after_s = retry_after_s


class QueueShed(QueueFull):
    """The queue is so full that it takes only more urgent jobs."""


class StoreUnavailable(PromptmillError):
    """Redis did not answer or refused a write.

    `kind` is timeout, connection, oom, misconf, readonly or other.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(f"the store is unavailable ({kind})")
        self.kind = kind


class StorageFull(PromptmillError):
    """The disk that holds files takes no more; nothing of what was being written is left."""


class StaleLease(PromptmillError):
    """The lease ran out or was taken over; whatever its holder did since is void."""
