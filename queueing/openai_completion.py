"""OpenAI's plain completions, to and from the queue's records.

Owns which parameters of such a body are served, which are refused by name, and the shape of the
answer. Knows nothing of HTTP. A prompt is a text or token ids; several prompts are several requests
or a batch.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag

from queueing.body import TAG, validate
from queueing.errors import FailureCode, RequestError
from queueing.fields import MaxTokens
from queueing.job import Choice, JobResult
from queueing.openai_answer import openai_id, openai_usage
from queueing.openai_sampling import (
    UNSERVED_OF_LINES,
    SamplingBody,
    StreamOptions,
    check_stream_options,
    sampling_fields,
    without_unserved,
)
from queueing.served_model import ServedModels, SizedRequest
from queueing.wire import GenerateRequest

# Parameters that are not served, and the values beside null that ask for nothing.
_UNSERVED: dict[str, tuple[Any, ...]] = {  # values of JSON
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
_UNSERVED_OF_LINES = _UNSERVED | UNSERVED_OF_LINES
_MAX_PROMPT_IDS = 1_000_000
_TOKEN_LIMIT = 2**31


def _only_prompt(value: Any) -> Any:  # a validator sees whatever the caller sent
    """Take the prompt out of a list of one; leave anything else to validation."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        return value[0]
    if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | list):
        message = "prompt: one prompt a request; send several requests or a batch"
        raise RequestError(FailureCode.UNSUPPORTED_PARAMETER, message, "prompt")
    return value


def _prompt_tag(value: Any) -> str:  # a discriminator sees whatever the caller sent
    return f"{TAG}ids>" if isinstance(value, list) else f"{TAG}text>"


_TokenId = Annotated[int, Field(ge=0, lt=_TOKEN_LIMIT)]


class CompletionCall(SamplingBody):
    """The served part of a completion's body. null is the same as leaving one out."""

    prompt: Annotated[
        Annotated[str, Field(min_length=1), Tag(f"{TAG}text>")]
        | Annotated[
            list[_TokenId],
            Field(min_length=1, max_length=_MAX_PROMPT_IDS),
            Tag(f"{TAG}ids>"),
        ],
        Discriminator(_prompt_tag),
        BeforeValidator(_only_prompt),
        Field(description="a text that is not empty, or a list of token ids"),
    ]
    max_tokens: MaxTokens = None
    logprobs: Annotated[int | None, Field(ge=0, le=5, description="an integer from 0 to 5")] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def parse_completion_line(body: dict[str, Any]) -> CompletionCall:
    """Return a batch line's body; raises RequestError that names the parameter at fault."""
    return validate(CompletionCall, without_unserved(body, _UNSERVED_OF_LINES))


def parse_completion_call(body: dict[str, Any]) -> CompletionCall:
    """Return a request's body; raises RequestError that names the parameter at fault."""
    call = validate(CompletionCall, without_unserved(body, _UNSERVED))
    check_stream_options(call.stream, call.stream_options)
    return call


def size_completion(call: CompletionCall, models: ServedModels) -> SizedRequest:
    """Return what to queue; raises RequestError for an unknown model and a prompt too long."""
    model = models.find(call.model)
    if isinstance(call.prompt, str):
        num_prompt_tokens = model.count_prompt(call.prompt)
        prompt: dict[str, Any] = {"prompt": call.prompt}
    else:
        num_prompt_tokens = model.count_ids(call.prompt, "prompt")
        prompt = {"prompt_ids": tuple(call.prompt)}
    request = GenerateRequest(
        model=model.name,
        max_tokens=model.grant(num_prompt_tokens, call.max_tokens),
        **prompt,
        num_logprobs=call.logprobs,
        **sampling_fields(call, model),
    )
    return SizedRequest(request, num_prompt_tokens)


def text_completion(job_id: str, result: JobResult, created_s: int) -> dict[str, Any]:
    """Return a completed job as OpenAI's text_completion; `created_s` is when it was asked for."""
    return {
        "id": openai_id("cmpl-", job_id),
        "object": "text_completion",
        "created": created_s,
        "model": result.model,
        "choices": [_text_choice(choice) for choice in result.choices],
        "usage": openai_usage(result.usage),
    }


def completion_logprobs(told: Sequence[dict[str, Any]], offset: int = 0) -> dict[str, Any]:
    """Return the log probabilities of tokens as completions have them.

    `offset` is how much of the text comes before the first of them.
    """
    tokens = [one["token"] for one in told]
    return {
        "tokens": tokens,
        "token_logprobs": [one["logprob"] for one in told],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in one["top_logprobs"]} for one in told
        ],
        "text_offset": list(accumulate(map(len, tokens[:-1]), initial=offset)) if tokens else [],
    }


def _text_choice(choice: Choice) -> dict[str, Any]:
    told = choice.logprobs
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if told is None else completion_logprobs(told["content"]),
        "finish_reason": choice.finish_reason,
    }
