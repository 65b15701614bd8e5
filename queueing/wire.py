"""Every format that crosses a process: the request a worker reads and the result it leaves. JSON,
versioned by `v`.

A reader refuses a version it does not know, so that a rolling update never misreads a job.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from queueing.errors import FailureCode
from queueing.job import Choice, JobError, JobKind, JobResult, JobState, Usage

VERSION = 1
# A worker that knows no kinds of jobs reads version 1 alone, and hands this back to one that does.
EMBED_VERSION = 2


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What a prompt job asks for: one of `prompt`, `prompt_ids` and `messages`, and how to answer.

    Temperature 0 is greedy. `stream` asks for the text as it comes; `schema` is the JSON schema
    that the text must keep to. `n` is how many texts to make; `num_logprobs` asks for the log
    probability of each token and of so many others; `logit_bias` has token ids for names. `user` is
    whom the caller serves; `extra` is what a surface needs again when it tells of the job.
    """

    model: str
    max_tokens: int
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    messages: tuple[dict[str, str], ...] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = field(default_factory=dict)
    num_logprobs: int | None = None
    n: int = 1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stream: bool = False
    schema: str | None = None
    user: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> JobKind:
        """What its job makes."""
        return JobKind.GENERATE

    @property
    def max_output_tokens(self) -> int:
        """Count the tokens it may generate in all."""
        return self.n * self.max_tokens


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """What an embedding job asks for: the vector of one of `prompt` and `prompt_ids`; `user` and
    `extra` as in a GenerateRequest.
    """

    model: str
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    user: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> JobKind:
        """What its job makes."""
        return JobKind.EMBED

    @property
    def max_output_tokens(self) -> int:
        """Count the tokens it may generate: none."""
        return 0


class UnknownVersion(ValueError):
    """The payload was written by a newer promptmill."""


def encode_request(request: GenerateRequest | EmbedRequest) -> str:
    """Write a request as JSON."""
    version = VERSION if request.kind is JobKind.GENERATE else EMBED_VERSION
    return json.dumps({"v": version, **asdict(request)}, separators=(",", ":"))


def decode_request(payload: str) -> GenerateRequest:
    """Read a request; raises UnknownVersion."""
    fields = _versioned(payload)
    for name in ("stop", "stop_token_ids"):
        fields[name] = tuple(fields[name])
    for name in ("messages", "prompt_ids"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    return GenerateRequest(**fields)


def decode_embed_request(payload: str) -> EmbedRequest:
    """Read the request of an embedding job; raises UnknownVersion."""
    fields = _versioned(payload, EMBED_VERSION)
    if fields["prompt_ids"] is not None:
        fields["prompt_ids"] = tuple(fields["prompt_ids"])
    return EmbedRequest(**fields)


def encode_result(result: JobResult) -> str:
    """Write a result as JSON; NaN and infinity can't occur in it and are refused."""
    return _RESULTS.encode({"v": VERSION, **_fields_of(result)})


def decode_result(payload: str) -> JobResult:
    """Read a result; the scripts leave the short form of a job that ended without one. Raises
    UnknownVersion.
    """
    fields = _versioned(payload)
    error = fields.get("error")
    return JobResult(
        state=JobState(fields["state"]),
        choices=tuple(Choice(**choice) for choice in fields.get("choices", ())),
        vector=fields.get("vector"),
        usage=Usage(**fields.get("usage", {})),
        error=JobError(FailureCode(error["code"]), error["message"], error.get("param"))
        if error
        else None,
        model=fields.get("model", ""),
        stages=fields.get("stages", {}),
    )


def _fields_of(record: Any) -> dict[str, Any]:
    """Return a slotted record's own fields; asdict, which copies all that is in them, is slow."""
    return {name: getattr(record, name) for name in record.__slots__}


# Made once: json.dumps makes one at every call with options.
_RESULTS = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_fields_of)


def _versioned(payload: str, readable: int = VERSION) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(payload)
    version = fields.pop("v")
    if version != readable:
        raise UnknownVersion(f"payload version {version}, this process reads {readable}")
    return fields
