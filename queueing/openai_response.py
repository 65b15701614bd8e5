"""OpenAI's responses, to and from the queue's records.

Owns which parameters of such a body are served, which are refused by name, and the response object
at every stage of its job. Knows nothing of HTTP. What the object repeats of the request travels
with the job, as `extra` of its request: a response is told long after it was asked for.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from queueing.body import TAG, StrictModel, validate
from queueing.errors import FailureCode, RequestError
from queueing.fields import MaxTokens, Metadata, Temperature, TopP
from queueing.job import JobError, JobRecord, JobState, Usage
from queueing.openai_answer import openai_id
from queueing.openai_format import TextFormat
from queueing.openai_sampling import (
    UNSERVED_OF_LINES,
    UNSERVED_TIERS_OF_LINES,
    ModelName,
    ServiceTier,
    StreamOptions,
    User,
    check_stream_options,
    or_default,
    without_unserved,
)
from queueing.served_model import ServedModels, SizedRequest
from queueing.wire import GenerateRequest

# Parameters that are not served, and the values beside null that ask for nothing.
_UNSERVED: dict[str, tuple[Any, ...]] = {  # values of JSON
    "access_programs": (),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning": ({}, {"effort": "none"}),
    "safety_identifier": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncation": ("disabled",),
}
# Nobody can fetch, follow or cancel the response of a line.
_UNSERVED_OF_LINES: dict[str, tuple[Any, ...]] = {  # values of JSON
    **_UNSERVED,
    **UNSERVED_OF_LINES,
    **UNSERVED_TIERS_OF_LINES,
    "background": (False,),
    "store": (False,),
}
_UNSERVED_OF_ITEMS: dict[str, tuple[Any, ...]] = {  # values of JSON
    "phase": (),
    "status": ("completed", "incomplete", "in_progress"),
}
_UNSERVED_OF_PARTS: dict[str, tuple[Any, ...]] = {"annotations": ([],)}
LOGPROBS = "message.output_text.logprobs"
_ECHO = "response"
_STATUS = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.COMPLETED: "completed",
    JobState.CANCELLED: "cancelled",
}


def _served_part(value: Any) -> Any:  # a validator sees whatever the caller sent
    return without_unserved(value, _UNSERVED_OF_PARTS) if isinstance(value, dict) else value


def _served_item(value: Any) -> Any:  # a validator sees whatever the caller sent
    return without_unserved(value, _UNSERVED_OF_ITEMS) if isinstance(value, dict) else value


def _list_tag(value: Any) -> str:  # a discriminator sees whatever the caller sent
    return f"{TAG}list>" if isinstance(value, list) else f"{TAG}text>"


class InputPart(StrictModel):
    """A piece of a message's text; output_text is what an earlier answer was made of.

    `logprobs` is what was told of that answer, which says nothing to the model.
    """

    type: Literal["input_text", "output_text"]
    text: str
    logprobs: list[dict[str, Any]] | None = None  # OpenAI's own shape


_Parts = list[Annotated[InputPart, BeforeValidator(_served_part)]]


class InputMessage(StrictModel):
    """One message of the input. `id` is what an earlier answer was called."""

    type: Literal["message"] = "message"
    id: Annotated[str | None, Field(max_length=64)] = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag(f"{TAG}text>")]
        | Annotated[_Parts, Field(min_length=1), Tag(f"{TAG}list>")],
        Discriminator(_list_tag),
    ]

    def as_plain(self) -> dict[str, str]:
        """Return role and content as a chat template reads them."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return {"role": role, "content": self.content}
        return {"role": role, "content": "\n".join(part.text for part in self.content)}


class TextSettings(StrictModel):
    """What the text is to be like."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


_Include = Annotated[
    Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=16)] | None,
    Field(description=f"a list of {LOGPROBS}"),
]
_Items = list[Annotated[InputMessage, BeforeValidator(_served_item)]]


class ResponseCall(StrictModel):
    """The served part of a response's body. null is the same as leaving one out."""

    model: ModelName
    input: Annotated[
        Annotated[str, Field(min_length=1), Tag(f"{TAG}text>")]
        | Annotated[_Items, Field(min_length=1, max_length=4096), Tag(f"{TAG}list>")],
        Discriminator(_list_tag),
        Field(description="a text that is not empty, or a list of messages"),
    ]
    instructions: str | None = None
    max_output_tokens: MaxTokens = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: TextSettings | None = None
    include: _Include = None
    top_logprobs: Annotated[
        int | None, Field(ge=0, le=20, description="an integer from 0 to 20")
    ] = None
    background: bool | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: Metadata = None
    user: User = None
    service_tier: ServiceTier = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.background and self.store is False:
            message = "a background response is fetched later, so it must be stored"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "store")
        if self.top_logprobs and not self.include:
            message = f"top_logprobs: goes with include: [{LOGPROBS}]"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "top_logprobs")
        check_stream_options(self.stream, self.stream_options)
        return self

    def as_messages(self) -> tuple[dict[str, str], ...]:
        """Return instructions and input in the form that the queue carries."""
        asked = (
            [{"role": "user", "content": self.input}]
            if isinstance(self.input, str)
            else [message.as_plain() for message in self.input]
        )
        if self.instructions is None:
            return tuple(asked)
        return ({"role": "system", "content": self.instructions}, *asked)

    @property
    def num_logprobs(self) -> int | None:
        """How many other tokens' log probabilities to tell beside each token's own."""
        return (self.top_logprobs or 0) if self.include else None

    @property
    def schema_text(self) -> str | None:
        """The JSON schema that the answer must keep to."""
        if self.text is None or self.text.format is None:
            return None
        return self.text.format.as_schema()

    def echo(self) -> dict[str, Any]:
        """Return what the response object repeats."""
        return {
            "background": bool(self.background),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": or_default(self.temperature),
            "top_p": or_default(self.top_p),
            "top_logprobs": self.top_logprobs or 0,
            "service_tier": self.service_tier or "default",
            "text": self._echoed_text(),
            "user": self.user,
        }

    def _echoed_text(self) -> dict[str, Any]:
        form = None if self.text is None else self.text.format
        if form is None:
            return {"format": {"type": "text"}}
        return {"format": form.model_dump(by_alias=True, exclude_none=True)}


def parse_response_line(body: dict[str, Any]) -> ResponseCall:
    """Return a batch line's body; raises RequestError that names the parameter at fault."""
    return validate(ResponseCall, without_unserved(body, _UNSERVED_OF_LINES))


def parse_response_call(body: dict[str, Any]) -> ResponseCall:
    """Return a request's body; raises RequestError that names the parameter at fault."""
    return validate(ResponseCall, without_unserved(body, _UNSERVED))


def size_response(call: ResponseCall, models: ServedModels) -> SizedRequest:
    """Return what to queue; raises RequestError for an unknown model and a prompt too long."""
    model = models.find(call.model)
    messages = call.as_messages()
    model.check_schema(call.schema_text, "text.format")
    num_prompt_tokens = model.count_chat(messages, "input")
    request = GenerateRequest(
        model=model.name,
        max_tokens=model.grant(num_prompt_tokens, call.max_output_tokens),
        messages=messages,
        temperature=or_default(call.temperature),
        top_p=or_default(call.top_p),
        schema=call.schema_text,
        num_logprobs=call.num_logprobs,
        user=call.user,
        extra={_ECHO: call.echo()},
    )
    return SizedRequest(request, num_prompt_tokens)


def is_background(request: GenerateRequest) -> bool:
    """Tell whether a response was asked for in the background."""
    return bool(request.extra[_ECHO]["background"])


def response_object(record: JobRecord, request: GenerateRequest) -> dict[str, Any]:
    """Return a job as OpenAI's response, as it is now."""
    status = _status(record)
    return {
        "id": openai_id("resp_", record.id),
        "object": "response",
        "created_at": record.arrival_s,
        "completed_at": record.finished_s if status == "completed" else None,
        "status": status,
        "error": _error(record),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": request.model,
        "output": _output(record, status),
        "usage": None if record.result is None else _usage(record.result.usage),
        "metadata": {} if record.metadata is None else json.loads(record.metadata),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        **request.extra[_ECHO],
    }


def message_item(job_id: str, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the one item of a response's output."""
    return {
        "id": openai_id("msg_", job_id),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": parts,
    }


def text_part(text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Return the one part of a response's message; `logprobs` of each token, if asked for."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _status(record: JobRecord) -> str:
    is_cut = record.result is not None and any(
        choice.finish_reason == "length" for choice in record.result.choices
    )
    if record.state is JobState.COMPLETED and is_cut:
        return "incomplete"
    return _STATUS.get(record.state, "failed")


def _output(record: JobRecord, status: str) -> list[dict[str, Any]]:
    if record.result is None or record.state is not JobState.COMPLETED:
        return []
    (choice,) = record.result.choices
    told = () if choice.logprobs is None else choice.logprobs["content"]
    return [message_item(record.id, status, [text_part(choice.text, told)])]


def _error(record: JobRecord) -> dict[str, Any] | None:
    result = record.result
    if result is None or result.error is None or record.state is JobState.CANCELLED:
        return None
    return {"code": _error_code(result.error), "message": result.error.message}


def _error_code(error: JobError) -> str:
    """Return OpenAI's word for the class of a failure; its own codes are a closed list."""
    is_callers = error.code in (
        FailureCode.CONTEXT_LENGTH_EXCEEDED,
        FailureCode.INVALID_REQUEST,
    )
    return "invalid_prompt" if is_callers else "server_error"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
