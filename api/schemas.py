"""The native surface's contract: what a job is asked for with, and what is told of it.

Owns the fields of both directions and their translation to and from the queue's records. Knows
nothing of HTTP. A body's rules are kept by validation; what needs the model (its name, its context)
is checked by `size_job`.
"""

import json
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from queueing.body import StrictModel
from queueing.errors import FailureCode, RequestError
from queueing.fields import MaxTokens, Metadata, Seed, Stop, Temperature, TopK, TopP
from queueing.job import Enqueued, JobRecord, JobResult, JobState, Priority, model_of_queue
from queueing.openai_chat import Messages, plain_messages
from queueing.openai_embedding import vector_numbers
from queueing.served_model import ServedModels, SizedEmbedding, SizedRequest
from queueing.wire import EmbedRequest, GenerateRequest

MAX_DEADLINE_S = 30 * 86_400

_Prompt = Annotated[
    Annotated[str, Field(min_length=1)] | None, Field(description="a text that is not empty")
]
_Input = Annotated[
    Annotated[str, Field(min_length=1)] | None,
    Field(description="a text that is not empty, to make a vector of"),
]
_ModelName = Annotated[
    Annotated[str, Field(max_length=256)] | None, Field(description="the name of a served model")
]
_IgnoreEos = Annotated[
    bool, Field(description="true to go on after the model's own end, up to max_tokens")
]
_PriorityName = Annotated[
    Literal["realtime", "standard", "bulk"], Field(description="realtime, standard or bulk")
]
_DeadlineS = Annotated[
    Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None,
    Field(description="seconds from arrival, at most 30 days"),
]
_MustMeetDeadline = Annotated[
    bool, Field(description="true to be refused at once when the deadline is out of reach")
]
_WebhookUrl = Annotated[str | None, Field(description="an https URL told when the job ends")]


# How to answer a prompt; nothing of it goes with an input.
_OF_ANSWERS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos")


class JobBody(StrictModel):
    """The body of POST /v1/jobs: exactly one of `prompt` and `messages`, and how to answer it; or
    an `input`, which becomes an embedding.
    """

    prompt: _Prompt = None
    messages: Messages | None = None
    input: _Input = None
    model: _ModelName = None
    max_tokens: MaxTokens = None
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    seed: Seed = None
    stop: Stop = None
    ignore_eos: _IgnoreEos = False
    priority: _PriorityName = "standard"
    deadline_s: _DeadlineS = None
    must_meet_deadline: _MustMeetDeadline = False
    webhook_url: _WebhookUrl = None
    metadata: Metadata = None

    @model_validator(mode="after")
    def _check_deadline(self) -> Self:
        if self.must_meet_deadline and self.deadline_s is None:
            message = "must_meet_deadline needs a deadline_s"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "must_meet_deadline")
        return self

    @model_validator(mode="after")
    def _check_input(self) -> Self:
        given = [one for one in (self.prompt, self.messages, self.input) if one is not None]
        if len(given) != 1:
            message = "give exactly one of prompt, messages and input"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "prompt")
        if self.input is not None:
            for name in _OF_ANSWERS:
                if name in self.model_fields_set:
                    message = f"{name}: an input is not answered"
                    raise RequestError(FailureCode.INVALID_REQUEST, message, name)
        return self


class JobReceipt(BaseModel):
    """The answer to POST /v1/jobs: the job that stands for the request, and the state it is in."""

    model_config = ConfigDict(frozen=True)

    id: str
    object: Literal["job"] = "job"
    model: str
    priority: str
    state: JobState


class ChoiceObject(BaseModel):
    """One generated text; `finish_reason` is stop or length."""

    index: int
    text: str
    finish_reason: str


class ResultObject(BaseModel):
    """What was generated. `choices` is there when more than one text was asked for."""

    text: str
    finish_reason: str
    choices: list[ChoiceObject] | None = None


class EmbeddingResultObject(BaseModel):
    """The vector of an input: float32 numbers, of length one together."""

    embedding: list[float]


class UsageObject(BaseModel):
    """Tokens read and made; `cached_tokens` of the prompt were read before and kept."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class ErrorObject(BaseModel):
    """Why there is no result: a code to match on, words to read, the field at fault."""

    code: str
    message: str
    param: str | None = None


class JobObject(BaseModel):
    """A job as it is now.

    Instants are seconds since the epoch on the store's clock, null when they have not come.
    `attempts` counts claims, `losses` the workers that died with it. `stages` are durations in
    milliseconds. A job that ended has a `result` or an `error`; once its text has expired the
    error's code is result_expired.
    """

    id: str
    object: Literal["job"] = "job"
    model: str
    state: JobState
    priority: Priority
    created_at: float
    started_at: float | None
    finished_at: float | None
    deadline_at: float | None
    attempts: int
    losses: int
    metadata: dict[str, str] | None
    stages: dict[str, float]
    result: ResultObject | EmbeddingResultObject | None
    usage: UsageObject | None
    error: ErrorObject | None


def size_job(body: JobBody, models: ServedModels) -> SizedRequest | SizedEmbedding:
    """Return what to queue; raises RequestError for an unknown model and a prompt too long."""
    if body.input is not None:
        # Vectors of one model say nothing beside those of another.
        model = models.find_itself(body.model)
        num_tokens = model.count_prompt(body.input, "input")
        model.check_fits(num_tokens, "input")
        return SizedEmbedding(EmbedRequest(model.name, prompt=body.input), num_tokens)
    model = models.find(body.model)
    messages = None if body.messages is None else plain_messages(body.messages)
    if messages is not None:
        num_prompt_tokens = model.count_chat(messages)
    else:
        num_prompt_tokens = model.count_prompt(body.prompt or "")
    request = GenerateRequest(
        model=model.name,
        max_tokens=model.grant(num_prompt_tokens, body.max_tokens),
        prompt=body.prompt,
        messages=messages,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
        stop=tuple(body.stop or ()),
        ignore_eos=body.ignore_eos,
    )
    return SizedRequest(request, num_prompt_tokens)


def job_object(record: JobRecord) -> JobObject:
    """Return a job's record as it is told."""
    result = record.result
    is_completed = result is not None and result.state is JobState.COMPLETED
    return JobObject(
        id=record.id,
        model=model_of_queue(record.queue),
        state=record.state,
        priority=record.priority,
        created_at=record.arrival_s,
        started_at=record.started_s,
        finished_at=record.finished_s,
        deadline_at=record.deadline_s,
        attempts=record.attempts,
        losses=record.losses,
        metadata=None if record.metadata is None else json.loads(record.metadata),
        stages=record.stages,
        result=_result_object(result) if result is not None and is_completed else None,
        usage=None if result is None else _usage_object(result),
        error=_error_object(record),
    )


def job_receipt(enqueued: Enqueued, model: str, priority: str, state: JobState) -> JobReceipt:
    """Return the answer to a submit."""
    return JobReceipt(id=enqueued.job_id, model=model, priority=priority, state=state)


def _result_object(result: JobResult) -> ResultObject | EmbeddingResultObject:
    if result.vector is not None:
        return EmbeddingResultObject(embedding=vector_numbers(result.vector))
    choices = [
        ChoiceObject(index=choice.index, text=choice.text, finish_reason=choice.finish_reason)
        for choice in result.choices
    ]
    first = choices[0]
    return ResultObject(
        text=first.text,
        finish_reason=first.finish_reason,
        choices=choices if len(choices) > 1 else None,
    )


def _usage_object(result: JobResult) -> UsageObject:
    usage = result.usage
    return UsageObject(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _error_object(record: JobRecord) -> ErrorObject | None:
    if record.result_expired:
        message = "the job ended and its text has been deleted since"
        return ErrorObject(code=FailureCode.RESULT_EXPIRED, message=message)
    if record.result is None or record.result.error is None:
        return None
    error = record.result.error
    return ErrorObject(code=error.code, message=error.message, param=error.param)
