"""Token streams: the text of a job as it comes, from the worker that makes it to whoever follows.

Each job that is streamed has one Redis stream of pieces, alive for STREAM_TTL_MS after the last. A
piece says which claim made it and how much text lies before it, so a reader can tell a text that
goes on from one that began anew: after a crash the next worker tells the whole text again, from the
first letter. What got lost on the way is no harm, for a job's result has all of its text.

The writer asks once a step for all of its jobs; the store drops pieces of leases that are not held,
so a zombie says nothing. Knows no HTTP. Both sides raise StoreUnavailable.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from queueing import keys
from queueing.clock import Clock
from queueing.errors import PromptmillError
from queueing.job import JobState, Lease
from queueing.queue import QueueLimits
from queueing.store import Script, translated_errors

STREAM_TTL_MS = 600_000
FIRST = "0-0"


class TextDiverged(PromptmillError):
    """A text that was told once came out otherwise when it was made again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice of a job gained: `offset` characters of the choice's text come before it."""

    index: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class StreamRead:
    """What a reader had not read yet, where to go on, and whether the job has ended."""

    pieces: tuple[Piece, ...]
    position: str
    has_ended: bool


class TokenStreams:
    """The streams of one installation. Thread-safe: it holds nothing but the client."""

    def __init__(
        self, client: "redis.Redis", *, prefix: str = "{pm}:", clock: Clock | None = None
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._limits_json = QueueLimits().as_json()
        self._append = Script(client, "stream_append", prefix, allow_oom=False)

    def append(self, pieces: Sequence[tuple[Lease, Piece]]) -> int:
        """Add pieces and wake who follows; return how many were added, which the rest were not."""
        args: list[str | int] = []
        for lease, piece in pieces:
            told = {"index": piece.index, "offset": piece.offset, "text": piece.text}
            args += (lease.job_id, lease.fence, json.dumps(told, separators=(",", ":")))
        now = str(self._clock.now_ms()) if self._clock else ""
        return int(self._append(now, self._limits_json, STREAM_TTL_MS, *args))

    def read(self, job_id: str, position: str = FIRST) -> StreamRead:
        """Return what came after a position, without waiting. A job that is gone has ended."""
        stream = keys.STREAM.of(self._prefix, id=job_id)
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.xrange(stream, min=f"({position}")
            pipeline.hget(keys.JOB.of(self._prefix, id=job_id), "state")
            entries, state = pipeline.execute()
        return StreamRead(
            pieces=tuple(_piece_of(fields) for _, fields in entries),
            position=entries[-1][0] if entries else position,
            has_ended=state is None or JobState(state).is_terminal,
        )


class FollowedText:
    """The text of one choice as a reader knows it, from one run or from several."""

    def __init__(self) -> None:
        self._text = ""

    def take(self, piece: Piece) -> str:
        """Return what a piece adds; raises TextDiverged when it tells what is known otherwise.

        A piece beyond a gap adds nothing: what is missing comes with the result.
        """
        if piece.offset > len(self._text):
            return ""
        known = self._text[piece.offset : piece.offset + len(piece.text)]
        if not piece.text.startswith(known):
            raise TextDiverged("another run of the job came out otherwise")
        added = piece.text[len(known) :]
        self._text += added
        return added

    def finish(self, text: str) -> str:
        """Return what the whole text adds; raises TextDiverged when it is another one."""
        if not text.startswith(self._text):
            raise TextDiverged("the job's result is another text than was streamed")
        return text[len(self._text) :]


def _piece_of(fields: dict[str, Any]) -> Piece:
    return Piece(**json.loads(fields["piece"]))
