"""What OpenAI's ways of asking for text share: parameters of sampling, service tiers, refusals.

Knows no whole body and no answer. Nothing a caller asks for is ignored: a parameter that is not
served is accepted only with a value that means the same as leaving it out, and refused by name
otherwise.
"""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field

from queueing.body import StrictModel
from queueing.errors import FailureCode, RequestError
from queueing.fields import Seed, Stop, Temperature, TopP
from queueing.job import Priority
from queueing.served_model import ServedModel

MAX_CHOICES = 16
# What no line of a batch can have, and the values beside null that ask for nothing: a line is told
# in a file, once, and its batch says how urgent it is.
UNSERVED_OF_LINES: dict[str, tuple[Any, ...]] = {  # values of JSON
    "stream": (False,),
    "stream_options": (),
}
UNSERVED_TIERS_OF_LINES: dict[str, tuple[Any, ...]] = {  # values of JSON
    "service_tier": ("auto", "default", "flex"),
}

ModelName = Annotated[str, Field(max_length=256, description="the name of a served model")]
User = Annotated[
    Annotated[str, Field(max_length=512)] | None, Field(description="up to 512 characters")
]
ServiceTier = Annotated[
    Literal["auto", "default", "flex", "priority"] | None,
    Field(description="auto, default, flex or priority"),
]


_Penalty = Annotated[float | None, Field(ge=-2, le=2, description="a number from -2 to 2")]
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_LogitBias = Annotated[
    Annotated[dict[_TokenId, _Bias], Field(max_length=1024)] | None,
    Field(description="up to 1024 token ids, each with a number from -100 to 100"),
]
_NumChoices = Annotated[
    int | None, Field(ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
]


class SamplingBody(StrictModel):
    """The parameters of sampling that chats and plain completions share."""

    model: ModelName
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stop: Stop = None
    seed: Seed = None
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    logit_bias: _LogitBias = None
    n: _NumChoices = None
    user: User = None


class StreamOptions(StrictModel):
    """How to stream. `include_obfuscation` pads events, which is not served."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


def sampling_fields(body: SamplingBody, model: ServedModel) -> dict[str, Any]:
    """Return the fields of a GenerateRequest that such a body sets; raises RequestError."""
    bias = body.logit_bias or {}
    for token_id in bias:
        if int(token_id) >= model.encoder.vocab_size:
            message = f"logit_bias: the model has no token {token_id}"
            raise RequestError(FailureCode.INVALID_REQUEST, message, f"logit_bias.{token_id}")
    return {
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "logit_bias": bias,
        "n": body.n or 1,
        "temperature": or_default(body.temperature),
        "top_p": or_default(body.top_p),
        "seed": body.seed,
        "stop": tuple(body.stop or ()),
        "user": body.user,
    }


def or_default(value: float | None) -> float:
    """Return a temperature or top_p; OpenAI's default for either is 1."""
    return 1.0 if value is None else value


def priority_of(tier: str | None, allowed: Collection[Priority]) -> Priority:
    """Return how urgent a service tier is: flex can wait, everything else is awaited.

    Unless the tier is `priority`, a caller who may not have that gets the next that he may.
    """
    wanted = Priority.STANDARD if tier == "flex" else Priority.REALTIME
    if tier == "priority":
        return wanted
    lower = (one for one in Priority if one.level >= wanted.level and one in allowed)
    return next(lower, wanted)


def check_stream_options(stream: bool | None, options: StreamOptions | None) -> None:  # noqa: FBT001  as the body has it
    """Refuse options of a stream where none was asked for; raises RequestError."""
    if options is not None and not stream:
        message = "stream_options is only for stream: true"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "stream_options")


def without_unserved(body: dict[str, Any], unserved: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return `body` without what asks for nothing; raises RequestError for what is not served.

    `unserved` has, beside null, the values of each parameter that ask for nothing.
    """
    for name in body.keys() & unserved.keys():
        if body[name] is not None and not _is_one_of(body[name], unserved[name]):
            raise RequestError(
                FailureCode.UNSUPPORTED_PARAMETER, f"{name} is not supported here", name
            )
    return {name: value for name, value in body.items() if name not in unserved}


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    # True equals 1 in Python, but n: true is not n: 1.
    return any(type(value) is type(one) and value == one for one in neutral)
