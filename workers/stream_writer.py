"""StreamWriter: hands the text of running jobs to those who follow, one call to the store a turn.

Owned by the delivery thread. Only jobs that asked for it are streamed. A store that is away is
asked again later, and then told everything that came meanwhile; a job that ended needs no more
telling, since its result has the whole text.
"""

import time

import structlog

from ops.logs import Event
from queueing.errors import StoreUnavailable
from queueing.token_stream import TokenStreams
from workers.running import RunningJob

_RETRY_S = 0.5


class StreamWriter:
    """Tells what jobs gained since they were last told of."""

    def __init__(self, streams: TokenStreams) -> None:
        self._streams = streams
        self._gained: dict[str, RunningJob] = {}
        self._retry_at = 0.0
        self._log = structlog.stdlib.get_logger(__name__)

    def note(self, job: RunningJob) -> None:
        """Note that a job may have gained text."""
        if job.request.stream:
            self._gained[job.tag] = job

    def forget(self, tag: str) -> None:
        """Tell no more of a job: it ended, or is somebody else's."""
        self._gained.pop(tag, None)

    def flush(self) -> None:
        """Tell of all text that was not told."""
        now = time.monotonic()
        if not self._gained or now < self._retry_at:
            return
        told = [(job, piece) for job in self._gained.values() for piece in job.untold()]
        try:
            if told:
                self._streams.append([(job.claim.lease, piece) for job, piece in told])
        except StoreUnavailable as error:
            self._retry_at = now + _RETRY_S
            self._log.warning(Event.STORE_LOST, reason=error.kind, num_streams=len(told))
            return
        for job, piece in told:
            job.note_told(piece)
        self._gained.clear()
