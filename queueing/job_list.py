"""JobList: a tenant's own jobs by state, and what it had of the service so far.

Reads the lists and counters that the queue's scripts keep; writes nothing. Queued and running jobs
are listed newest arrival first, ended ones by when they ended. Verbs raise StoreUnavailable.
"""

from collections.abc import Sequence
from typing import cast

import redis

from queueing import keys
from queueing.job import JobRecord, JobState
from queueing.pages import Page, PageQuery, read_page
from queueing.queue import JobQueue
from queueing.store import translated_errors


class JobList:
    """The lists of one installation. Thread-safe: it holds nothing but the client."""

    def __init__(self, client: "redis.Redis", queue: JobQueue, *, prefix: str = "{pm}:") -> None:
        self._client = client
        self._queue = queue
        self._prefix = prefix

    def page(self, tenant: str, state: JobState, query: PageQuery) -> Page[JobRecord]:
        """Return some of a tenant's jobs; raises RequestError for an unknown cursor.

        A job that changes its state between two pages does not end the listing.
        """

        def fetch(job_ids: Sequence[str]) -> list[JobRecord | None]:
            records = self._queue.get_many(job_ids, tenant)
            return [record if record and record.state is state else None for record in records]

        def score_of(job_id: str) -> int | None:
            record = self._queue.get(job_id, tenant)
            if record is None:
                return None
            ended_s = record.finished_s if state.is_terminal else None
            return round(1000 * (ended_s or record.arrival_s))

        index = keys.JOBS.of(self._prefix, tenant=tenant, state=state.value)
        return read_page(self._client, index, query, fetch, score_of)

    def num_live(self, tenant: str) -> dict[JobState, int]:
        """Count a tenant's listed jobs that have not ended, by state."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            states = [state for state in JobState if not state.is_terminal]
            for state in states:
                pipeline.zcard(keys.JOBS.of(self._prefix, tenant=tenant, state=state.value))
            return dict(zip(states, pipeline.execute(), strict=True))

    def usage(self, tenant: str) -> dict[str, int]:
        """Return a tenant's counters since it was made: submitted, tokens, each terminal state."""
        with translated_errors():
            key = keys.USAGE.of(self._prefix, tenant=tenant)
            fields = cast("dict[str, str]", self._client.hgetall(key))
        return {name: int(value) for name, value in fields.items()}
