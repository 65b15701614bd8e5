"""OpenAI's embeddings, to and from the queue's records.

Owns which parameters of such a body are served, which are refused by name, and the shape of the
answer. Knows nothing of HTTP. Each input is a job of its own.
"""

import sys
from array import array
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from queueing.body import TAG, StrictModel, validate
from queueing.errors import FailureCode, RequestError
from queueing.job import JobResult
from queueing.openai_sampling import ModelName, User, without_unserved
from queueing.served_model import ServedModel, ServedModels, SizedEmbedding
from queueing.wire import EmbedRequest

MAX_INPUTS = 2048

# The models here make vectors of one length only.
_UNSERVED: dict[str, tuple[Any, ...]] = {"dimensions": ()}  # values of JSON
_MAX_IDS = 1_000_000
_TOKEN_LIMIT = 2**31


def _input_tag(value: Any) -> str:  # a discriminator sees whatever the caller sent
    match value:
        case [int(), *_]:
            return f"{TAG}ids>"
        case [list(), *_]:
            return f"{TAG}lists of ids>"
        case list():
            return f"{TAG}texts>"
        case _:
            return f"{TAG}text>"


_Text = Annotated[str, Field(min_length=1)]
_TokenId = Annotated[int, Field(ge=0, lt=_TOKEN_LIMIT)]
_Ids = Annotated[list[_TokenId], Field(min_length=1, max_length=_MAX_IDS)]


class EmbeddingCall(StrictModel):
    """The served part of an embedding's body. null is the same as leaving one out."""

    model: ModelName
    input: Annotated[
        Annotated[_Text, Tag(f"{TAG}text>")]
        | Annotated[_Ids, Tag(f"{TAG}ids>")]
        | Annotated[list[_Text], Field(min_length=1, max_length=MAX_INPUTS), Tag(f"{TAG}texts>")]
        | Annotated[
            list[_Ids], Field(min_length=1, max_length=MAX_INPUTS), Tag(f"{TAG}lists of ids>")
        ],
        Discriminator(_input_tag),
        Field(
            description="a text that is not empty, a list of token ids,"
            f" or up to {MAX_INPUTS} of one of them"
        ),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, Field(description="float or base64")
    ] = None
    user: User = None


def parse_embedding_call(body: dict[str, Any]) -> EmbeddingCall:
    """Return a request's body; raises RequestError that names the parameter at fault."""
    return validate(EmbeddingCall, without_unserved(body, _UNSERVED))


def size_embeddings(call: EmbeddingCall, models: ServedModels) -> tuple[SizedEmbedding, ...]:
    """Return what to queue, one for each input; raises RequestError for one that does not fit."""
    # Vectors of one model say nothing beside those of another.
    model = models.find_itself(call.model)
    inputs = _inputs_of(call)
    names = ["input"] if len(inputs) == 1 else [f"input[{index}]" for index in range(len(inputs))]
    return tuple(
        _sized(one, model, call.user, name) for one, name in zip(inputs, names, strict=True)
    )


def size_embedding_line(call: EmbeddingCall, models: ServedModels) -> SizedEmbedding:
    """Return what to queue for the line of a batch, which is one job and has one input.

    How the answer is to be encoded goes with the job, for when its line is written. Raises
    RequestError.
    """
    first, *others = size_embeddings(call, models)
    if others:
        message = "input: one input a line; send one line for each"
        raise RequestError(FailureCode.UNSUPPORTED_PARAMETER, message, "input")
    request = replace(first.request, extra={"encoding_format": call.encoding_format})
    return replace(first, request=request)


def embedding_line(result: JobResult, request: EmbedRequest) -> dict[str, Any]:
    """Return the completed job of a batch's line as OpenAI's list of one embedding."""
    return embedding_list([result], request.extra["encoding_format"])


def embedding_list(
    results: Sequence[JobResult], encoding: Literal["float", "base64"] | None
) -> dict[str, Any]:
    """Return completed jobs as OpenAI's list of embeddings, in their order."""
    num_tokens = sum(result.usage.prompt_tokens for result in results)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _encoded(result.vector or "", encoding),
            }
            for index, result in enumerate(results)
        ],
        "model": results[0].model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }


def vector_numbers(vector: str) -> list[float]:
    """Return a result's vector in decimals; of nine digits, each is read as the same float32."""
    numbers = array("f", b64decode(vector))
    if sys.byteorder == "big":
        numbers.byteswap()
    return [float(f"{number:.9g}") for number in numbers]


def _inputs_of(call: EmbeddingCall) -> list[str | list[int]]:
    if isinstance(call.input, str):
        return [call.input]
    ids = [one for one in call.input if isinstance(one, int)]
    return [ids] if ids else [one for one in call.input if not isinstance(one, int)]


def _sized(
    given: str | list[int], model: ServedModel, user: str | None, param: str
) -> SizedEmbedding:
    if isinstance(given, str):
        num_tokens = model.count_prompt(given, param)
        request = EmbedRequest(model.name, prompt=given, user=user)
    else:
        num_tokens = model.count_ids(given, param)
        request = EmbedRequest(model.name, prompt_ids=tuple(given), user=user)
    model.check_fits(num_tokens, param)
    return SizedEmbedding(request, num_tokens)


def _encoded(vector: str, encoding: str | None) -> str | list[float]:
    return vector if encoding == "base64" else vector_numbers(vector)
