"""OpenAI's objects as documents describe them: the fields that we tell, and their types.

Answers are made elsewhere, from the queue's records; a test holds them to these. Knows no HTTP.
"""

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

Item = TypeVar("Item")


class ListObject(BaseModel, Generic[Item]):
    """A page. The next one is asked for with `after` set to `last_id`, while there are more."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class WholeList(BaseModel, Generic[Item]):
    """All there is."""

    object: Literal["list"]
    data: list[Item]


class Deleted(BaseModel):
    """What is gone."""

    id: str
    object: str
    deleted: Literal[True]


class ModelObject(BaseModel):
    """A served model; `created` is when its folder was registered, in seconds since the epoch."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class FileObject(BaseModel):
    """A stored file. Instants are whole seconds since the epoch."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed", "error"]
    status_details: str = ""


class BatchFault(BaseModel):
    """Why a batch was not run: a line of its input and what is wrong with it."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchCounts(BaseModel):
    """Lines of a batch: those that ended in the output file and those in the error file."""

    total: int
    completed: int
    failed: int


class BatchObject(BaseModel):
    """A batch. Instants are whole seconds since the epoch, null when they have not come."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: WholeList[BatchFault] | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: "ResponseUsage"
    metadata: dict[str, str] | None
    notes: list[str]


class CompletionUsage(BaseModel):
    """Tokens read and made by a chat or a completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class ResponseUsage(BaseModel):
    """Tokens read and made by a response or a batch."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ChatMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None


class ChatChoice(BaseModel):
    """One answer to a chat."""

    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None = None  # OpenAI's own shape


class ChatCompletion(BaseModel):
    """A chat completion; `created` in seconds since the epoch."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage


class TextChoice(BaseModel):
    """One continuation of a prompt."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: dict[str, Any] | None = None  # OpenAI's own shape


class TextCompletion(BaseModel):
    """A plain completion; `created` in seconds since the epoch."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage


class Embedding(BaseModel):
    """The vector of one input, of length one: numbers, or float32 little-endian in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """The vectors of all inputs, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ResponseError(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(BaseModel):
    """A response. Further fields repeat what was asked for."""

    id: str
    object: Literal["response"]
    created_at: float
    completed_at: float | None
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
    error: ResponseError | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]  # OpenAI's own items
    usage: ResponseUsage | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    tool_choice: str
    tools: list[dict[str, Any]]  # none is served
