"""GroupAnswers: the jobs of one request become one answer, or an error.

Owns their wait. They hold one place together and are queued, counted and given up together: when
the caller leaves, when the time is up, or when one of them fails, what is left of them is
cancelled. Knows no shape of an answer.
"""

from collections.abc import Sequence
from dataclasses import replace

from flask import request

from api.caller import Caller
from api.openai.answers import MARGIN_S, completed_result
from api.openai.orders import GroupOrder
from api.submission import Submission
from api.waiters import Waiters
from api.watch import GroupWatch
from queueing.job import JobResult
from queueing.queue import JobQueue


class GroupAnswers:
    """Answers orders of several jobs. Thread-safe."""

    def __init__(
        self, queue: JobQueue, submission: Submission, waiters: Waiters, limit_s: float
    ) -> None:
        self._queue = queue
        self._submission = submission
        self._waiters = waiters
        self._limit_s = limit_s

    def at_once(self, order: GroupOrder) -> list[JobResult]:
        """Return the results of the order's jobs, in its order, once all have completed.

        Raises at the first that did not what completed_result raises.
        """
        with self._begin(order) as watch:
            return [completed_result(record) for record in watch.records()]

    def _begin(self, order: GroupOrder) -> GroupWatch:
        """Take a place, then queue the jobs: what can't be awaited is not begun."""
        # A caller with an Idempotency-Key may come back for the answer.
        is_kept = order.options.idempotency is not None
        options = replace(order.options, deadline_s=self._limit_s, is_silent=True)
        tenant = order.tenant
        watch = self._watch(tenant.name, order.job_ids)
        try:
            enqueued = self._submission.submit_group(tenant, order.sized, options, order.job_ids)
            job_ids = [one.job_id for one in enqueued]
            if job_ids != list(order.job_ids):
                repeated = self._watch(tenant.name, job_ids)
                watch.close()
                watch = repeated
        except BaseException:
            watch.close()
            raise
        watch.limit(self._limit_s + MARGIN_S, is_kept=is_kept)
        return watch

    def _watch(self, tenant: str, job_ids: Sequence[str]) -> GroupWatch:
        caller = Caller.of(request.environ)
        return GroupWatch(self._queue, self._waiters, tenant, job_ids, caller)
