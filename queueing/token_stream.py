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
from dataclasses import asdict, dataclass
from typing import Any

import redis

from queueing import keys
from queueing.clock import Clock
from queueing.errors import PromptmillError
from queueing.job import Choice, JobState, Lease
from queueing.queue import QueueLimits
from queueing.store import Script, translated_errors

STREAM_TTL_MS = 600_000
FIRST = "0-0"


class TextDiverged(PromptmillError):
    """A text that was told once came out otherwise when it was made again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice of a job gained: `offset` characters of the choice's text come before it.

    Where log probabilities were asked for, `logprobs` has those of its tokens, in OpenAI's shape,
    and `num_before` counts those that were told before.
    """

    index: int
    offset: int
    text: str
    num_before: int = 0
    logprobs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Gain:
    """What a reader learned that he did not know."""

    index: int
    text: str
    logprobs: tuple[dict[str, Any], ...] = ()


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
            told = {name: value for name, value in asdict(piece).items() if value}
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

    def delete(self, job_id: str) -> None:
        """Forget a job's stream, which nobody will follow any more."""
        with translated_errors():
            self._client.delete(keys.STREAM.of(self._prefix, id=job_id))


class FollowedText:
    """The text of one choice as a reader knows it, from one run or from several."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text = ""
        self._num_logprobs = 0

    def take(self, piece: Piece) -> Gain | None:
        """Return what a piece adds, if anything.

        Raises TextDiverged when it tells what is known otherwise. A piece beyond a gap adds
        nothing: what is missing comes with the result.
        """
        if piece.offset > len(self._text):
            return None
        known = self._text[piece.offset : piece.offset + len(piece.text)]
        if not piece.text.startswith(known):
            raise TextDiverged("another run of the job came out otherwise")
        return self._gain(piece.text[len(known) :], piece.num_before, piece.logprobs)

    def finish(self, choice: Choice) -> Gain | None:
        """Return what the whole text adds, if anything; raises TextDiverged when it is another."""
        if not choice.text.startswith(self._text):
            raise TextDiverged("the job's result is another text than was streamed")
        logprobs = () if choice.logprobs is None else tuple(choice.logprobs["content"])
        return self._gain(choice.text[len(self._text) :], 0, logprobs)

    def _gain(
        self, text: str, num_before: int, logprobs: tuple[dict[str, Any], ...]
    ) -> Gain | None:
        fresh = logprobs[max(0, self._num_logprobs - num_before) :]
        if not text and not fresh:
            return None
        self._text += text
        self._num_logprobs += len(fresh)
        return Gain(self._index, text, fresh)


def _piece_of(fields: dict[str, Any]) -> Piece:
    told = json.loads(fields["piece"])
    return Piece(
        index=told.get("index", 0),
        offset=told.get("offset", 0),
        text=told["text"],
        num_before=told.get("num_before", 0),
        logprobs=tuple(told.get("logprobs", ())),
    )
