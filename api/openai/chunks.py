"""The chunks in which chats and plain completions are streamed: StreamShapes of these surfaces."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from api.errors import error_object
from api.openai.answers import completed_result
from api.openai.streaming import event_of
from queueing.errors import RequestError
from queueing.job import JobRecord, model_of_queue
from queueing.openai_answer import openai_usage
from queueing.openai_completion import completion_logprobs
from queueing.openai_sampling import SamplingBody, StreamOptions
from queueing.token_stream import Gain

_DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """How many choices there are, and whether the last chunk tells what they took."""

    num_choices: int
    include_usage: bool


def chunk_options(body: SamplingBody, options: StreamOptions | None) -> ChunkOptions:
    """Return what a request asks of its chunks."""
    wants_usage = options is not None and bool(options.include_usage)
    return ChunkOptions(num_choices=body.n or 1, include_usage=wants_usage)


class ChoiceShape(Protocol):
    """How one surface spells a choice in a chunk."""

    kind: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return what comes before the first text, if anything."""
        ...

    def gained(self, gain: Gain) -> dict[str, Any]:
        """Return a choice that gained text."""
        ...

    def ended(self, index: int, reason: str) -> dict[str, Any]:
        """Return a choice that is whole."""
        ...


class ChatChoices:
    """The choices of a chat; the first chunk of each says who speaks."""

    kind = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        """Say who speaks."""
        return _choice(index, delta={"role": "assistant", "content": ""})

    def gained(self, gain: Gain) -> dict[str, Any]:
        """Return a choice that gained text."""
        choice = _choice(gain.index, delta={"content": gain.text})
        if gain.logprobs:
            choice["logprobs"] = {"content": gain.logprobs, "refusal": None}
        return choice

    def ended(self, index: int, reason: str) -> dict[str, Any]:
        """Return a choice that is whole."""
        return _choice(index, delta={}) | {"finish_reason": reason}


class CompletionChoices:
    """The choices of a completion. Knows how much text each has, which tokens' places need."""

    kind = "text_completion"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> None:
        """Say nothing."""
        self._offsets[index] = 0

    def gained(self, gain: Gain) -> dict[str, Any]:
        """Return a choice that gained text."""
        choice = _choice(gain.index, text=gain.text)
        if gain.logprobs:
            told = completion_logprobs(gain.logprobs, self._offsets[gain.index])
            self._offsets[gain.index] += sum(map(len, told["tokens"]))
            choice["logprobs"] = told
        return choice

    def ended(self, index: int, reason: str) -> dict[str, Any]:
        """Return a choice that is whole."""
        return _choice(index, text="") | {"finish_reason": reason}


class Chunks:
    """An answer as it comes, in a surface's own choices."""

    def __init__(self, record: JobRecord, choices: ChoiceShape, options: ChunkOptions) -> None:
        self._choices = choices
        self._options = options
        self._head = {
            "id": record.id,
            "object": choices.kind,
            "created": int(record.arrival_s),
            "model": model_of_queue(record.queue),
        }

    def begin(self) -> Iterator[str]:
        """Say who speaks, where that is said."""
        for index in range(self._options.num_choices):
            opening = self._choices.opening(index)
            if opening is not None:
                yield self._chunk(opening)

    def gain(self, gain: Gain) -> Iterator[str]:
        """Tell text that came."""
        yield self._chunk(self._choices.gained(gain))

    def end(self, record: JobRecord) -> Iterator[str]:
        """Tell why each text ends, and what it took; raises RequestError for a failed job."""
        result = completed_result(record)
        for choice in result.choices:
            yield self._chunk(self._choices.ended(choice.index, choice.finish_reason))
        if self._options.include_usage:
            yield event_of({**self._head, "choices": [], "usage": openai_usage(result.usage)})
        yield _DONE

    def broken(self, error: RequestError) -> Iterator[str]:
        """Say that the stream can't go on."""
        yield event_of({"error": error_object(error.code, error.message, error.param)})

    def _chunk(self, choice: dict[str, Any]) -> str:
        usage = {"usage": None} if self._options.include_usage else {}
        return event_of({**self._head, "choices": [choice], **usage})


def _choice(index: int, **said: Any) -> dict[str, Any]:  # values of JSON
    return {"index": index, **said, "logprobs": None, "finish_reason": None}
