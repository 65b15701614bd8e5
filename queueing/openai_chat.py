"""OpenAI's chat completions, to and from the queue's records; for the route and for batch lines.

Owns which parameters of such a body are served, which are refused by name, and the shape of the
answer. Knows nothing of HTTP.

Messages become the two-field form that chat templates read: `developer` is OpenAI's newer word for
`system`, and the text parts of one message are joined by line ends.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from queueing.body import TAG, StrictModel, validate
from queueing.errors import FailureCode, RequestError
from queueing.fields import MaxTokens, Metadata
from queueing.job import Choice, JobResult
from queueing.openai_answer import openai_id, openai_usage
from queueing.openai_format import ChatFormat
from queueing.openai_sampling import (
    UNSERVED_OF_LINES,
    UNSERVED_TIERS_OF_LINES,
    SamplingBody,
    ServiceTier,
    StreamOptions,
    check_stream_options,
    sampling_fields,
    without_unserved,
)
from queueing.served_model import ServedModels, SizedRequest
from queueing.wire import GenerateRequest

# Parameters that are not served, and the values beside null that ask for nothing.
_UNSERVED: dict[str, tuple[Any, ...]] = {  # values of JSON
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "safety_identifier": (),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
_UNSERVED_OF_LINES = _UNSERVED | UNSERVED_OF_LINES | UNSERVED_TIERS_OF_LINES
_UNSERVED_OF_MESSAGES: dict[str, tuple[Any, ...]] = {  # values of JSON
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}


class TextPart(StrictModel):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


def _content_tag(value: Any) -> str:  # a discriminator sees whatever the caller sent
    return f"{TAG}parts>" if isinstance(value, list) else f"{TAG}text>"


class Message(StrictModel):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag(f"{TAG}text>")]
        | Annotated[list[TextPart], Field(min_length=1), Tag(f"{TAG}parts>")],
        Discriminator(_content_tag),
    ]

    def as_plain(self) -> dict[str, str]:
        """Return role and content as a chat template reads them."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return {"role": role, "content": self.content}
        return {"role": role, "content": "\n".join(part.text for part in self.content)}


def _supported_message(value: Any) -> Any:  # a validator sees whatever the caller sent
    if isinstance(value, dict):
        return without_unserved(value, _UNSERVED_OF_MESSAGES)
    return value


Messages = Annotated[
    list[Annotated[Message, BeforeValidator(_supported_message)]],
    Field(min_length=1, max_length=4096, description="a list of messages"),
]


class ChatBody(SamplingBody):
    """The served part of a chat completion's body. null is the same as leaving one out."""

    messages: Messages
    max_completion_tokens: MaxTokens = None
    max_tokens: MaxTokens = None
    logprobs: bool | None = None
    top_logprobs: Annotated[
        int | None, Field(ge=0, le=20, description="an integer from 0 to 20")
    ] = None
    response_format: ChatFormat | None = None
    metadata: Metadata = None
    service_tier: ServiceTier = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stop is not None and self.schema_text is not None:
            message = "stop: would cut an answer that has to keep to response_format"
            raise RequestError(FailureCode.UNSUPPORTED_PARAMETER, message, "stop")
        if self.top_logprobs is not None and not self.logprobs:
            message = "top_logprobs: goes with logprobs: true"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "top_logprobs")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """How many other tokens' log probabilities to tell beside each token's own."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def schema_text(self) -> str | None:
        """The JSON schema that the answer must keep to."""
        return None if self.response_format is None else self.response_format.as_schema()

    @property
    def asked_max_tokens(self) -> int | None:
        """The caller's limit under either name; max_completion_tokens, the newer one, wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class ChatCall(ChatBody):
    """A chat completion that is answered over HTTP, at once or as it comes."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None


def parse_chat_line(body: dict[str, Any]) -> ChatBody:
    """Return a batch line's body; raises RequestError that names the parameter at fault."""
    return validate(ChatBody, without_unserved(body, _UNSERVED_OF_LINES))


def parse_chat_call(body: dict[str, Any]) -> ChatCall:
    """Return a request's body; raises RequestError that names the parameter at fault."""
    call = validate(ChatCall, without_unserved(body, _UNSERVED))
    check_stream_options(call.stream, call.stream_options)
    return call


def size_chat(chat: ChatBody, models: ServedModels) -> SizedRequest:
    """Return what to queue; raises RequestError for an unknown model and a prompt too long."""
    model = models.find(chat.model)
    messages = plain_messages(chat.messages)
    model.check_schema(chat.schema_text, "response_format")
    num_prompt_tokens = model.count_chat(messages)
    request = GenerateRequest(
        model=model.name,
        max_tokens=model.grant(num_prompt_tokens, chat.asked_max_tokens),
        messages=messages,
        schema=chat.schema_text,
        num_logprobs=chat.num_logprobs,
        **sampling_fields(chat, model),
    )
    return SizedRequest(request, num_prompt_tokens)


def plain_messages(messages: list[Message]) -> tuple[dict[str, str], ...]:
    """Return messages in the form that the queue carries."""
    return tuple(message.as_plain() for message in messages)


def chat_completion(
    job_id: str, request_model: str, result: JobResult, created_s: int
) -> dict[str, Any]:
    """Return a completed job as OpenAI's chat.completion; `created_s` is when it was asked for."""
    return {
        "id": openai_id("chatcmpl-", job_id),
        "object": "chat.completion",
        "created": created_s,
        "model": request_model,
        "choices": [_chat_choice(choice) for choice in result.choices],
        "usage": openai_usage(result.usage),
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
    }
