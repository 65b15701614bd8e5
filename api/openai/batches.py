"""OpenAI's batches: create, list, retrieve, cancel.

Owns the body of a batch and the batch object. The work itself is done by the ticks of a CPU worker;
nothing here reads the input file.

Beside `24h`, which OpenAI's clients know, `completion_window` takes a number with s, m, h or d up
to seven days, for example `30m`. The batch object has one field of ours: `notes`, what was
tolerated in the input file and what the batch waits for.
"""

import re
from typing import Annotated, Any, Literal

from flask import Blueprint, Response, jsonify
from pydantic import Field

from api.auth import current_tenant
from api.drain import Drain
from api.idempotency import read_idempotency
from api.limits import TenantRates
from api.openai.lists import list_object, read_page_query
from api.requests import read_object, read_query
from queueing.batch import Batch, BatchStatus, NewBatch, Progress
from queueing.batch_endpoints import BATCH_ENDPOINTS
from queueing.batch_store import BatchStore
from queueing.body import StrictModel, validate
from queueing.errors import FailureCode, RequestError
from queueing.fields import Metadata
from queueing.files import MONTH_S
from queueing.job import Priority, new_id

_FILE_ID = re.compile(r"file-[0-9A-Za-z]{22}")
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MAX_WINDOW_S = 7 * 86_400
_DEFAULT_LIMIT, _MAX_LIMIT = 20, 100


class OutputExpiry(StrictModel):
    """How long the batch's files are kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3_600, le=MONTH_S)]


class BatchBody(StrictModel):
    """The body of POST /v1/batches."""

    input_file_id: Annotated[str, Field(max_length=64, description="the id of an uploaded file")]
    endpoint: Annotated[str, Field(max_length=64)]
    completion_window: Annotated[str, Field(max_length=16, description="24h")]
    metadata: Metadata = None
    output_expires_after: OutputExpiry | None = None


class BatchRoutes:
    """The handlers of /v1/batches. They hold nothing of a request."""

    def __init__(
        self, batches: BatchStore, drain: Drain, rates: TenantRates, *, window: int
    ) -> None:
        """Take how many lines of a batch may be in the queue at once."""
        self._batches = batches
        self._drain = drain
        self._rates = rates
        self._window = window

    def blueprint(self) -> Blueprint:
        """Return the routes, to be registered once."""
        blueprint = Blueprint("batches", __name__, url_prefix="/v1/batches")
        one = '/<id("batch_"):batch_id>'
        blueprint.add_url_rule("", view_func=self.create, methods=["POST"])
        blueprint.add_url_rule("", view_func=self.list, methods=["GET"])
        blueprint.add_url_rule(one, view_func=self.retrieve, methods=["GET"])
        blueprint.add_url_rule(f"{one}/cancel", view_func=self.cancel, methods=["POST"])
        return blueprint

    def create(self) -> Response:
        """Accept a batch; its input is validated afterwards."""
        read_query()
        self._drain.refuse_new_work()
        # The priority of a batch's lines.
        current_tenant().check_priority(Priority.BULK)
        fields = read_object()
        body = validate(BatchBody, fields)
        if not _FILE_ID.fullmatch(body.input_file_id):
            raise RequestError(FailureCode.NOT_FOUND, "no such file", "input_file_id")
        if body.endpoint not in BATCH_ENDPOINTS:
            message = f"endpoint must be {' or '.join(BATCH_ENDPOINTS)}"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "endpoint")
        expiry = body.output_expires_after
        batch = NewBatch(
            id=new_id("batch_"),
            tenant=current_tenant().name,
            input_file=body.input_file_id,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            window_s=_window_s(body.completion_window),
            window=self._window,
            metadata=body.metadata,
            output_ttl_s=expiry.seconds if expiry else None,
        )
        # Its tokens are counted line by line, when they are sent.
        self._rates.take(current_tenant(), 0)
        return self._answer(self._batches.create(batch, read_idempotency("batches", fields)))

    def list(self) -> Response:
        """Return a page of the tenant's batches, newest first."""
        query, _ = read_page_query(default_limit=_DEFAULT_LIMIT, max_limit=_MAX_LIMIT)
        page = self._batches.page(current_tenant().name, query)
        return jsonify(list_object([batch_object(batch) for batch in page.items], page.has_more))

    def retrieve(self, batch_id: str) -> Response:
        """Return a batch as it is."""
        read_query()
        return self._answer(batch_id)

    def cancel(self, batch_id: str) -> Response:
        """Ask for a batch's end; what is finished stays in its output."""
        read_query()
        status = self._batches.cancel(batch_id, current_tenant().name)
        if status is not None and status.is_terminal and status is not BatchStatus.CANCELLED:
            message = f"the batch has ended: it is {status}"
            raise RequestError(FailureCode.CONFLICT, message)
        return self._answer(batch_id)

    def _answer(self, batch_id: str) -> Response:
        batch = self._batches.get(batch_id, current_tenant().name)
        if batch is None:
            raise RequestError(FailureCode.NOT_FOUND, "there is no such batch")
        return jsonify(batch_object(batch))


def batch_object(batch: Batch) -> dict[str, Any]:
    """Return a batch in OpenAI's shape; instants are whole seconds."""
    progress = batch.progress
    counts = {
        "total": progress.total or 0,
        "completed": progress.completed,
        "failed": progress.failed,
    }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": _errors(progress),
        "input_file_id": batch.input_file,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.created_s),
        "in_progress_at": _reached(batch, BatchStatus.IN_PROGRESS),
        "expires_at": int(batch.expires_s),
        "finalizing_at": _reached(batch, BatchStatus.FINALIZING),
        "completed_at": _reached(batch, BatchStatus.COMPLETED),
        "failed_at": _reached(batch, BatchStatus.FAILED),
        "expired_at": _reached(batch, BatchStatus.EXPIRED),
        "cancelling_at": _reached(batch, BatchStatus.CANCELLING),
        "cancelled_at": _reached(batch, BatchStatus.CANCELLED),
        "request_counts": counts,
        "usage": _usage(progress),
        "metadata": batch.metadata,
        "notes": list(progress.notes),
    }


def _errors(progress: Progress) -> dict[str, Any] | None:
    if not progress.faults:
        return None
    data = [
        {"code": fault.code, "line": fault.line, "message": fault.message, "param": fault.param}
        for fault in progress.faults
    ]
    return {"object": "list", "data": data}


def _usage(progress: Progress) -> dict[str, Any]:
    usage = progress.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _reached(batch: Batch, status: BatchStatus) -> int | None:
    instant_s = batch.reached_s.get(status)
    return None if instant_s is None else int(instant_s)


def _window_s(completion_window: str) -> int:
    found = _WINDOW.fullmatch(completion_window)
    window_s = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 1 <= window_s <= _MAX_WINDOW_S:
        message = "completion_window must be 24h, or a number with s, m, h or d up to 7d"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "completion_window")
    return window_s
