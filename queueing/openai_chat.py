"""OpenAI's chat completions, to and from the queue's records; for the route and for batch lines.

Owns which parameters of such a body are served, which are refused by name, and the shape of the
answer. Knows nothing of HTTP. Nothing a caller asks for is ignored: a parameter that is not served
is accepted only with the value that means the same as leaving it out.

Messages become the two-field form that chat templates read: `developer` is OpenAI's newer word for
`system`, and the text parts of one message are joined by line ends.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from queueing.body import TAG, StrictModel, validate
from queueing.errors import FailureCode, RequestError
from queueing.fields import MaxTokens, Metadata, Seed, Stop, Temperature, TopP
from queueing.job import Choice, JobResult, Usage
from queueing.served_model import ServedModels, SizedRequest
from queueing.wire import GenerateRequest

# Parameters of OpenAI's that are not served, and the values beside null that ask for nothing.
_UNSERVED: dict[str, tuple[Any, ...]] = {  # values of JSON
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (),
    "prediction": (),
    "presence_penalty": (0,),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "store": (False,),
    "stream": (False,),
    "stream_options": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": (),
    "web_search_options": (),
}
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


class ChatBody(StrictModel):
    """The served part of a chat completion's body. null is the same as leaving one out."""

    model: Annotated[str, Field(max_length=256, description="the name of a served model")]
    messages: Messages
    max_completion_tokens: MaxTokens = None
    max_tokens: MaxTokens = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: Stop = None
    seed: Seed = None
    user: Annotated[str | None, Field(max_length=512)] = None
    metadata: Metadata = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None

    @property
    def asked_max_tokens(self) -> int | None:
        """The caller's limit under either name; max_completion_tokens, the newer one, wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


def parse_chat_body(body: dict[str, Any]) -> ChatBody:
    """Return a chat completion's body; raises RequestError that names the parameter at fault."""
    return validate(ChatBody, without_unserved(body, _UNSERVED))


def size_chat(chat: ChatBody, models: ServedModels) -> SizedRequest:
    """Return what to queue; raises RequestError for an unknown model and a prompt too long."""
    model = models.find(chat.model)
    messages = plain_messages(chat.messages)
    num_prompt_tokens = model.count_chat(messages)
    request = GenerateRequest(
        model=model.name,
        max_tokens=model.grant(num_prompt_tokens, chat.asked_max_tokens),
        messages=messages,
        temperature=1.0 if chat.temperature is None else chat.temperature,
        top_p=1.0 if chat.top_p is None else chat.top_p,
        seed=chat.seed,
        stop=tuple(chat.stop or ()),
    )
    return SizedRequest(request, num_prompt_tokens)


def plain_messages(messages: list[Message]) -> tuple[dict[str, str], ...]:
    """Return messages in the form that the queue carries."""
    return tuple(message.as_plain() for message in messages)


def without_unserved(body: dict[str, Any], unserved: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return `body` without what asks for nothing; raises RequestError for what is not served."""
    for name in body.keys() & unserved.keys():
        if body[name] is not None and not _is_one_of(body[name], unserved[name]):
            raise RequestError(
                FailureCode.UNSUPPORTED_PARAMETER, f"{name} is not supported here", name
            )
    return {name: value for name, value in body.items() if name not in unserved}


def chat_completion(
    job_id: str, request_model: str, result: JobResult, created_s: int
) -> dict[str, Any]:
    """Return a completed job as OpenAI's chat.completion; `created_s` is when it was asked for."""
    return {
        "id": "chatcmpl-" + job_id.partition("_")[2],
        "object": "chat.completion",
        "created": created_s,
        "model": request_model,
        "choices": [_chat_choice(choice) for choice in result.choices],
        "usage": openai_usage(result.usage),
    }


def openai_usage(usage: Usage) -> dict[str, Any]:
    """Return token counts under OpenAI's names."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _chat_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
    }


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    # True equals 1 in Python, but n: true is not n: 1.
    return any(type(value) is type(one) and value == one for one in neutral)
