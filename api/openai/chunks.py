"""The chunks in which chats and plain completions are streamed: StreamShapes of these surfaces."""

from collections.abc import Callable, Iterator
from typing import Any

from api.errors import error_object
from api.openai.answers import Gain, completed_result
from api.openai.streaming import event_of
from queueing.errors import RequestError
from queueing.job import JobRecord, model_of_queue
from queueing.openai_answer import openai_usage

_DONE = "data: [DONE]\n\n"


def chat_chunks(record: JobRecord, *, include_usage: bool) -> "Chunks":
    """Return the shape of a chat completion; the first chunk says who speaks."""

    def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
        delta = {} if reason else {"content": text}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}

    first = choice(0, "", None)
    first["delta"]["role"] = "assistant"
    head = _head(record, "chat.completion.chunk")
    return Chunks(head, choice, [first], include_usage=include_usage)


def completion_chunks(record: JobRecord, *, include_usage: bool) -> "Chunks":
    """Return the shape of a plain completion."""

    def choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    head = _head(record, "text_completion")
    return Chunks(head, choice, [], include_usage=include_usage)


class Chunks:
    """Chunks that differ in their choices alone; those without text say why it ends."""

    def __init__(
        self,
        head: dict[str, Any],
        choice: Callable[[int, str, str | None], dict[str, Any]],
        first: list[dict[str, Any]],
        *,
        include_usage: bool,
    ) -> None:
        self._head = head
        self._choice = choice
        self._first = first
        self._include_usage = include_usage

    def begin(self) -> Iterator[str]:
        """Say who speaks, where that is said."""
        return (self._chunk(choice) for choice in self._first)

    def gain(self, gain: Gain) -> Iterator[str]:
        """Tell text that came."""
        yield self._chunk(self._choice(gain.index, gain.text, None))

    def end(self, record: JobRecord) -> Iterator[str]:
        """Tell why each text ends, and what it took; raises RequestError for a failed job."""
        result = completed_result(record)
        for one in result.choices:
            yield self._chunk(self._choice(one.index, "", one.finish_reason))
        if self._include_usage:
            yield event_of({**self._head, "choices": [], "usage": openai_usage(result.usage)})
        yield _DONE

    def broken(self, error: RequestError) -> Iterator[str]:
        """Say that the stream can't go on."""
        yield event_of({"error": error_object(error.code, error.message, error.param)})

    def _chunk(self, choice: dict[str, Any]) -> str:
        usage = {"usage": None} if self._include_usage else {}
        return event_of({**self._head, "choices": [choice], **usage})


def _head(record: JobRecord, kind: str) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": kind,
        "created": int(record.arrival_s),
        "model": model_of_queue(record.queue),
    }
