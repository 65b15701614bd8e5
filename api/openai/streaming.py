"""Streaming: a job that is followed becomes server-sent events, in a surface's own shape.

Owns the form of an event and how a stream ends that can't go on: in an event that says so, since
the status was sent long ago.
"""

import json
from collections.abc import Iterator
from typing import Any, Protocol

from flask import Response, request

from api.caller import Caller, CallerLeft
from api.drain import DrainingError
from api.openai.answers import Following
from api.watch import WaitOver
from queueing.errors import FailureCode, RequestError
from queueing.job import JobRecord
from queueing.token_stream import Gain, TextDiverged

_UNREAD_S = 30.0
# A line that is no event: it only keeps the connection from looking dead.
_KEEP_ALIVE = ": waiting\n\n"


class StreamShape(Protocol):
    """How one surface tells of a job as it comes. Each method returns whole events."""

    def begin(self) -> Iterator[str]:
        """Say that the job was taken."""
        ...

    def gain(self, gain: Gain) -> Iterator[str]:
        """Tell text that came."""
        ...

    def end(self, record: JobRecord) -> Iterator[str]:
        """Tell how the job ended; a RequestError that it raises goes to `broken`."""
        ...

    def broken(self, error: RequestError) -> Iterator[str]:
        """Say that the stream can't go on."""
        ...


def event_of(fields: dict[str, Any], name: str | None = None) -> str:
    """Write one event; the JSON is ASCII, so no line of it can end early."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(fields, separators=(',', ':'))}\n\n"


def stream(following: Following, shape: StreamShape) -> Response:
    """Return the answer that tells a job as it comes."""
    # A caller who stops reading would keep a thread and a place for ever.
    Caller.of(request.environ).bound_writes(_UNREAD_S)
    response = Response(_events(following, shape), mimetype="text/event-stream")
    # nginx would otherwise hold events back.
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(following.close)
    return response


def _events(following: Following, shape: StreamShape) -> Iterator[str]:
    try:
        yield from shape.begin()
        for gain in following.gains():
            if gain is None:
                yield _KEEP_ALIVE
            else:
                yield from shape.gain(gain)
        yield from shape.end(following.record)
    except RequestError as error:
        yield from shape.broken(error)
    except TextDiverged:
        message = "a worker was lost, and the text came out otherwise when it was made again"
        yield from shape.broken(RequestError(FailureCode.WORKER_LOST, message))
    except WaitOver:
        message = "the answer took too long"
        yield from shape.broken(RequestError(FailureCode.DEADLINE_EXCEEDED, message))
    except DrainingError:
        message = "this server is shutting down"
        yield from shape.broken(RequestError(FailureCode.DRAINING, message))
    except CallerLeft:
        return
