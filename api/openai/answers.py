"""Answers: orders become jobs, and jobs become answers: at once, later, or as they come.

Owns the wait. A caller who wants his answer at once keeps his job alive: when he leaves, or when
the time is up, it is cancelled, unless he gave an Idempotency-Key to ask again with. Knows no
surface's shape of an answer.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from flask import request

from api.caller import Caller
from api.openai.orders import Order
from api.submission import Submission
from api.waiters import Waiters
from api.watch import JobWatch
from queueing.errors import FailureCode, RequestError, StoreUnavailable
from queueing.job import JobRecord, JobResult, JobState
from queueing.queue import JobQueue
from queueing.token_stream import FIRST, FollowedText, Gain, StreamRead, TokenStreams

# Proxies close a connection on which nothing is said for a minute.
_KEEP_ALIVE_S = 15.0
_LOOK_AGAIN_S = 0.5
# The deadline ends the job; its end needs a moment to come here.
MARGIN_S = 2.0


class Answers:
    """Answers orders. Thread-safe."""

    def __init__(
        self,
        queue: JobQueue,
        streams: TokenStreams,
        submission: Submission,
        waiters: Waiters,
        limit_s: float,
    ) -> None:
        self._queue = queue
        self._streams = streams
        self._submission = submission
        self._waiters = waiters
        self._limit_s = limit_s

    def at_once(self, order: Order) -> JobRecord:
        """Return the order's job once it has ended."""
        with self._begin(order, is_awaited=True) as watch:
            return watch.until_end()

    def later(self, order: Order) -> JobRecord:
        """Queue the order's job and return it as it is then."""
        enqueued = self._submission.submit(order.tenant, order.sized, order.options)
        return self.record(enqueued.job_id, order.tenant.name)

    def as_it_comes(self, order: Order, *, is_awaited: bool = True) -> "Following":
        """Queue the order's job and return how to follow it."""
        streamed = replace(order.sized, request=replace(order.sized.request, stream=True))
        watch = self._begin(replace(order, sized=streamed), is_awaited=is_awaited)
        return self._following(watch, order.tenant.name, is_kept=not is_awaited)

    def again(self, job_id: str, tenant: str) -> "Following":
        """Return how to follow a job that was queued before, from its first word."""
        watch = JobWatch(self._queue, self._waiters, tenant, job_id, Caller.of(request.environ))
        return self._following(watch, tenant, is_kept=True)

    def record(self, job_id: str, tenant: str) -> JobRecord:
        """Return a job as it is; raises RequestError when there is no such job."""
        record = self._queue.get(job_id, tenant)
        if record is None:
            raise RequestError(FailureCode.NOT_FOUND, "there is no such object")
        return record

    def _begin(self, order: Order, *, is_awaited: bool) -> JobWatch:
        """Take a place, then queue the job: what can't be awaited is not begun."""
        options = order.options
        if is_awaited:
            options = replace(options, deadline_s=self._limit_s, is_silent=True)
        caller = Caller.of(request.environ)
        tenant = order.tenant.name
        watch = JobWatch(self._queue, self._waiters, tenant, order.job_id, caller)
        try:
            enqueued = self._submission.submit(order.tenant, order.sized, options)
            if enqueued.job_id != order.job_id:
                repeated = JobWatch(self._queue, self._waiters, tenant, enqueued.job_id, caller)
                watch.close()
                watch = repeated
        except BaseException:
            watch.close()
            raise
        if is_awaited:
            # A caller with an Idempotency-Key may come back for the answer.
            is_kept = options.idempotency is not None
            watch.limit(self._limit_s + MARGIN_S, is_kept=is_kept)
        return watch

    def _following(self, watch: JobWatch, tenant: str, *, is_kept: bool) -> "Following":
        try:
            record = self.record(watch.job_id, tenant)
        except BaseException:
            watch.close()
            raise
        return Following(self._streams, watch, record, is_kept=is_kept)


class Following:
    """One caller's view of a job that is streamed. Close it in the end.

    A stream that is not kept is followed once: nobody comes back to it.
    """

    def __init__(
        self, streams: TokenStreams, watch: JobWatch, record: JobRecord, *, is_kept: bool
    ) -> None:
        self.record = record
        self._is_kept = is_kept
        self._streams = streams
        self._watch = watch

    def gains(self) -> Iterator[Gain | None]:
        """Yield text as it comes, None when nothing came for a while; then `record` has ended.

        Raises TextDiverged, and what JobWatch raises.
        """
        texts: dict[int, FollowedText] = {}
        position, has_ended = FIRST, False
        while not has_ended:
            read = self._read(position)
            if read is not None:
                position, has_ended = read.position, read.has_ended
                for piece in read.pieces:
                    text = texts.setdefault(piece.index, FollowedText(piece.index))
                    if (gain := text.take(piece)) is not None:
                        yield gain
            longest_s = _KEEP_ALIVE_S if read is not None else _LOOK_AGAIN_S
            if not has_ended and not self._watch.pause(longest_s):
                yield None
        self.record = self._watch.until_end()
        if self.record.state is JobState.COMPLETED:
            for choice in completed_result(self.record).choices:
                text = texts.setdefault(choice.index, FollowedText(choice.index))
                if (gain := text.finish(choice)) is not None:
                    yield gain

    def close(self) -> None:
        """Give the place back, and cancel the job when nobody else awaits it."""
        self._watch.close()
        if not self._is_kept:
            # What the store misses now, it forgets by itself.
            with suppress(StoreUnavailable):
                self._streams.delete(self._watch.job_id)

    def _read(self, position: str) -> StreamRead | None:
        try:
            return self._streams.read(self._watch.job_id, position)
        except StoreUnavailable:
            return None


def completed_result(record: JobRecord) -> JobResult:
    """Return what a job came to; raises RequestError when it did not complete."""
    result = record.result
    if result is None:
        message = "the answer was deleted since"
        raise RequestError(FailureCode.NOT_FOUND, message)
    if result.error is not None:
        raise RequestError(result.error.code, result.error.message, result.error.param)
    return result
