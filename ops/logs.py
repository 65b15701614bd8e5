"""Logs of every process: one JSON object a line on stdout, ours and the libraries' alike.

Owns the form of a line, the names of events and the fields that may never be logged. Imports
nothing of ours.

Fields of a line (absent when they do not apply):

    ts          when, ISO 8601 in UTC
    level       debug, info, warning, error or critical
    event       what happened: one of Event for our own lines, free text for a library's
    logger      the module that says so
    service     api, engine, cpu, beat or flower
    job_id      the job it is about; bound once with structlog.contextvars.bound_contextvars
    request_id  the HTTP request it is about
    model, priority, outcome, reason, attempt, fence
                the nouns of the architecture, as in the metrics' labels
    *_ms, num_* durations in milliseconds and counts
    exception   a list of {type, message, frames}, the cause last

Use: `log = structlog.stdlib.get_logger(__name__)`, `log.info(Event.JOB_FINISHED, latency_ms=12)`.

What a user wrote or a model answered is never logged. Fields whose names say that they hold such
text are withheld rather than refused with an error: a line is often written while something else
fails, and must not hide it. For the same reason an exception that quotes the value it is about
(ValueError and its like) is logged without its message.
"""

import json
import logging.config
import math
import sys
import traceback
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

WITHHELD_FIELDS = frozenset({"prompt", "text", "messages", "output", "content", "api_key"})
WITHHELD = "[withheld]"

_MAX_TEXT = 1_000
_MAX_DEPTH = 4
_MAX_CAUSES = 5
_QUOTING_EXCEPTIONS = (ValueError, LookupError, TypeError)
# Loggers that speak of every request, with URLs and their queries; our own events say the same
# without.
_QUIET_LOGGERS = (
    *("celery.app.trace", "celery.worker.strategy"),
    *("gunicorn.access", "httpcore", "httpx", "tornado.access", "werkzeug"),
)
# Loggers that bring handlers of their own, which would print a second, plain line.
_ROUTED_LOGGERS = ("celery", "celery.task", "gunicorn.error", "kombu", "py.warnings")


class Event(StrEnum):
    """What our own lines say happened; lower case, past tense."""

    PROCESS_STARTED = "process started"
    PROCESS_STOPPED = "process stopped"
    PROCESS_DIED = "process died"
    REQUEST_SERVED = "request served"
    REQUEST_FAILED = "request failed"
    JOB_ACCEPTED = "job accepted"
    JOB_CLAIMED = "job claimed"
    JOB_FINISHED = "job finished"
    JOB_RELEASED = "job released"
    JOB_CANCELLED = "job cancelled"
    RESULT_REFUSED = "result refused"
    MODEL_LOADED = "model loaded"
    WORKER_READY = "worker ready"
    WORKER_DRAINING = "worker draining"
    WORKER_RESUMED = "worker resumed"
    TURN_FAILED = "turn failed"
    WATCHDOG_EXPIRED = "watchdog expired"
    STORE_LOST = "store lost"
    STORE_FOUND = "store found"
    WEBHOOK_DELIVERED = "webhook delivered"
    WEBHOOK_FAILED = "webhook failed"
    BATCH_CHANGED = "batch changed"
    JANITOR_RAN = "janitor ran"
    ADMIN_ACTED = "admin acted"
    FOREIGN_ID_SOUGHT = "another tenant's id sought"
    UNKNOWN_ID_SOUGHT = "unknown id sought"
    SWITCH_FLIPPED = "switch flipped"


def configure_logging(service: str, level: str) -> None:
    """Send this process's logs to stdout as JSON; call once, from a composition root.

    Celery replaces handlers at its start unless its `setup_logging` signal is connected: connect
    this.
    """
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_described(service),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    logging.captureWarnings(capture=True)
    logging.config.dictConfig(logging_config(service, level))


# The shape is that of logging.config.dictConfig, which has no type of its own, hence Any.
def logging_config(service: str, level: str) -> dict[str, Any]:
    """Return the same as a dict, for gunicorn's `logconfig_dict`: it configures logging itself."""
    routed = {name: {"handlers": [], "propagate": True} for name in _ROUTED_LOGGERS}
    quiet = {
        name: {"handlers": [], "propagate": True, "level": "WARNING"} for name in _QUIET_LOGGERS
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _described(service),
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    _render_exception,
                    _withhold,
                    structlog.processors.JSONRenderer(serializer=json.dumps),
                ],
            }
        },
        "handlers": {
            "stdout": {
                "class": "logging.StreamHandler",
                "formatter": "json",
                "stream": "ext://sys.stdout",
            }
        },
        "root": {"level": level.upper(), "handlers": ["stdout"]},
        "loggers": routed | quiet,
    }


def _described(service: str) -> list[Processor]:
    """Return what is added to a line where it is written: who, when and about which job."""

    def add_service(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**event, "service": service}

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        add_service,
    ]


def _render_exception(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    found = event.pop("exc_info", None)
    event.pop("stack_info", None)
    match found:
        case True:
            error = sys.exc_info()[1]
        case (_, BaseException() as raised, _) | (BaseException() as raised):
            error = raised
        case _:
            error = None
    return event if error is None else {**event, "exception": _chain(error)}


def _chain(error: BaseException) -> list[dict[str, Any]]:
    causes: list[dict[str, Any]] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < _MAX_CAUSES:
        quotes = isinstance(cause, _QUOTING_EXCEPTIONS)
        causes.append(
            {
                "type": f"{type(cause).__module__}.{type(cause).__qualname__}",
                "message": WITHHELD if quotes else str(cause),
                "frames": [
                    f"{frame.filename}:{frame.lineno} {frame.name}"
                    for frame in traceback.extract_tb(cause.__traceback__)
                ],
            }
        )
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return causes


def _withhold(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {name: _safe(name, value, _MAX_DEPTH) for name, value in event.items()}


def _safe(name: str, value: object, depth: int) -> object:
    """Return `value` fit for a line: nothing to be withheld, no endless text, strict JSON."""
    if name.lower() in WITHHELD_FIELDS:
        return WITHHELD
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return str(value)[:_MAX_TEXT]
        case Mapping() if depth:
            return {str(key): _safe(str(key), inner, depth - 1) for key, inner in value.items()}
        case list() | tuple() if depth:
            return [_safe("", inner, depth - 1) for inner in value]
        case _:
            # Any other object's text may quote what it holds.
            return f"<{type(value).__qualname__}>"
