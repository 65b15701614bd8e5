"""The native surface: submit, poll and wait, cancel, erase.

Owns the routes under /v1/jobs and what their headers and queries mean. What a body holds is in
schemas.py; how a job comes into the queue in submission.py.
"""

import re
from time import monotonic

from flask import Blueprint, Response, g, jsonify, request, url_for

from api.auth import current_tenant
from api.caller import Caller
from api.drain import DrainingError
from api.idempotency import read_idempotency
from api.requests import read_object, read_query
from api.schemas import JobBody, job_object, job_receipt, size_job
from api.submission import JobOptions, Submission
from api.waiters import TooManyWaiters, Waiters
from api.watch import JobWatch, WaitOver
from queueing.body import validate
from queueing.errors import FailureCode, RequestError
from queueing.job import JobRecord, JobState, Priority
from queueing.queue import JobQueue
from queueing.served_model import ServedModels
from queueing.tenants import Tenant

_ENDPOINT = "jobs"
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")


class JobRoutes:
    """The handlers of /v1/jobs. They hold nothing of a request."""

    def __init__(
        self,
        queue: JobQueue,
        submission: Submission,
        models: ServedModels,
        waiters: Waiters,
        max_wait_s: float,
    ) -> None:
        self._queue = queue
        self._submission = submission
        self._models = models
        self._waiters = waiters
        self._max_wait_s = max_wait_s

    def blueprint(self) -> Blueprint:
        """Return the routes, to be registered once."""
        blueprint = Blueprint("jobs", __name__, url_prefix="/v1/jobs")
        one = '/<id("job_"):job_id>'
        blueprint.add_url_rule("", view_func=self.submit, methods=["POST"])
        blueprint.add_url_rule(one, view_func=self.retrieve, methods=["GET"])
        blueprint.add_url_rule(one, view_func=self.erase, methods=["DELETE"])
        blueprint.add_url_rule(f"{one}/cancel", view_func=self.cancel, methods=["POST"])
        return blueprint

    def submit(self) -> Response:
        """Queue one prompt: 202, its id, and Location."""
        read_query()
        fields = read_object()
        body = validate(JobBody, fields)
        tenant = current_tenant()
        sized = size_job(body, self._models.among(tenant.models))
        options = JobOptions(
            endpoint=_ENDPOINT,
            priority=Priority(body.priority),
            deadline_s=body.deadline_s,
            must_meet_deadline=body.must_meet_deadline,
            webhook_url=body.webhook_url,
            metadata=body.metadata,
            idempotency=read_idempotency(_ENDPOINT, fields),
            validate_ms=round((monotonic() - g.started_s) * 1000, 3),
        )
        enqueued = self._submission.submit(tenant, sized, options)
        state = JobState.QUEUED
        if not enqueued.created:
            state = self._record(enqueued.job_id, tenant).state
        receipt = job_receipt(enqueued, sized.request.model, body.priority, state)
        response = jsonify(receipt.model_dump(mode="json"))
        response.status_code = 202
        response.headers["Location"] = url_for("jobs.retrieve", job_id=enqueued.job_id)
        return response

    def retrieve(self, job_id: str) -> Response:
        """Return a job as it is; with ?wait=SECONDS once it has ended, or when the time is out."""
        wait_s = self._wait_s()
        tenant = current_tenant()
        record = self._record(job_id, tenant)
        if wait_s > 0 and not record.state.is_terminal:
            record = self._record_at_end(job_id, tenant, wait_s)
        return _answer(record)

    def cancel(self, job_id: str) -> Response:
        """End a job that has not ended; one that has stays as it is."""
        read_query()
        tenant = current_tenant()
        if self._queue.cancel(job_id, tenant.name) is None:
            raise _not_found()
        return _answer(self._record(job_id, tenant))

    def erase(self, job_id: str) -> Response:
        """Delete a job's record and texts, ending it first."""
        read_query()
        if not self._queue.erase(job_id, current_tenant().name):
            raise _not_found()
        return Response(status=204)

    def _record(self, job_id: str, tenant: Tenant) -> JobRecord:
        record = self._queue.get(job_id, tenant.name)
        if record is None:
            raise _not_found()
        return record

    def _record_at_end(self, job_id: str, tenant: Tenant, wait_s: float) -> JobRecord:
        """Return the job once it has ended; as it is when time, room for waiters or we run out."""
        caller = Caller.of(request.environ)
        try:
            with JobWatch(self._queue, self._waiters, tenant.name, job_id, caller) as watch:
                watch.limit(wait_s, is_kept=True)
                return watch.until_end()
        except (TooManyWaiters, WaitOver, DrainingError):
            return self._record(job_id, tenant)

    def _wait_s(self) -> float:
        text = read_query("wait").get("wait", "0")
        if not _SECONDS.fullmatch(text) or float(text) > self._max_wait_s:
            message = f"wait: should be seconds, at most {self._max_wait_s:g}"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "wait")
        return float(text)


def _answer(record: JobRecord) -> Response:
    return jsonify(job_object(record).model_dump(mode="json"))


def _not_found() -> RequestError:
    return RequestError(FailureCode.NOT_FOUND, "there is no such job")
