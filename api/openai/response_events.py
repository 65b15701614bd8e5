"""The events in which a response is streamed: the StreamShape of that surface.

Events are numbered, and equal streams have equal numbers: who lost his connection asks for the
events after the last that he saw, and they are made again from the job's stream. When that is gone
the text is one event, so numbers may be fewer than before; the last event is told in any case, and
has all of the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from api.openai.streaming import event_of
from queueing.errors import RequestError
from queueing.job import JobRecord, JobState
from queueing.openai_response import message_item, response_object, text_part
from queueing.token_stream import Gain
from queueing.wire import GenerateRequest


class ResponseEvents:
    """A response as it comes. Events up to the number `after` are left out."""

    def __init__(self, record: JobRecord, request: GenerateRequest, after: int = -1) -> None:
        self._record = record
        self._request = request
        self._after = after
        self._next_number = 0
        self._has_begun = False

    def begin(self) -> Iterator[str]:
        """Say that the response was taken."""
        response = self._response_in(JobState.QUEUED)
        yield from self._event("response.created", response=response)
        yield from self._event("response.queued", response=response)

    def gain(self, gain: Gain) -> Iterator[str]:
        """Tell text that came."""
        yield from self._open()
        told = _without_bytes(gain.logprobs)
        yield from self._part_event("response.output_text.delta", delta=gain.text, logprobs=told)

    def end(self, record: JobRecord) -> Iterator[str]:
        """Tell how the job ended, whichever way."""
        response = response_object(record, self._request)
        if record.state is not JobState.COMPLETED:
            yield from self._last_event("response.failed", response)
            return
        yield from self._open()
        (item,) = response["output"]
        (part,) = item["content"]
        told = _without_bytes(part["logprobs"])
        yield from self._part_event("response.output_text.done", text=part["text"], logprobs=told)
        yield from self._part_event("response.content_part.done", part=part)
        yield from self._event("response.output_item.done", output_index=0, item=item)
        yield from self._last_event(f"response.{response['status']}", response)

    def broken(self, error: RequestError) -> Iterator[str]:
        """Say that the stream can't go on."""
        fields = {"code": error.code.value, "message": error.message, "param": error.param}
        yield from self._event("error", **fields)

    def _open(self) -> Iterator[str]:
        """Say, once, that text is about to come."""
        if self._has_begun:
            return
        self._has_begun = True
        response = self._response_in(JobState.RUNNING)
        yield from self._event("response.in_progress", response=response)
        item = message_item(self._record.id, "in_progress", [])
        yield from self._event("response.output_item.added", output_index=0, item=item)
        yield from self._part_event("response.content_part.added", part=text_part(""))

    def _part_event(self, kind: str, **fields: Any) -> Iterator[str]:  # values of JSON
        item = message_item(self._record.id, "in_progress", [])
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> Iterator[str]:  # values of JSON
        number = self._next_number
        self._next_number += 1
        if number > self._after:
            yield event_of({"type": kind, "sequence_number": number, **fields}, kind)

    def _last_event(self, kind: str, response: dict[str, Any]) -> Iterator[str]:
        self._next_number = max(self._next_number, self._after + 1)
        return self._event(kind, response=response)

    def _response_in(self, state: JobState) -> dict[str, Any]:
        """Return the response as it was in an earlier state, the same at every telling."""
        earlier = replace(self._record, state=state, result=None, finished_s=None)
        return response_object(earlier, self._request)


def _without_bytes(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return log probabilities as events have them: of a token its text alone."""
    return [
        {
            "token": one["token"],
            "logprob": one["logprob"],
            "top_logprobs": [
                {"token": other["token"], "logprob": other["logprob"]}
                for other in one["top_logprobs"]
            ],
        }
        for one in told
    ]
