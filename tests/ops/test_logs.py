"""Each test runs a script of its own: logging is configured once in a process, for good."""

import json
import subprocess
import sys
import textwrap
from datetime import datetime, timedelta
from typing import Any

import pytest

from ops.logs import WITHHELD, WITHHELD_FIELDS

MARKER = "canary-7f3a"


def test_an_event_is_one_object_with_time_level_logger_and_service():
    (line,) = lines_of('log.info(Event.JOB_FINISHED, job_id="job_1", latency_ms=1.5)')

    assert datetime.fromisoformat(line.pop("ts")).utcoffset() == timedelta(0)
    assert line == {
        "level": "info",
        "event": "job finished",
        "logger": "workers.serving",
        "service": "engine",
        "job_id": "job_1",
        "latency_ms": 1.5,
    }


def test_a_bound_job_id_stands_in_each_line_also_in_a_librarys():
    lines = lines_of("""
        with structlog.contextvars.bound_contextvars(job_id="job_1"):
            log.info(Event.JOB_CLAIMED)
            logging.getLogger("kombu").warning("connection %s", "lost")
        log.info(Event.WORKER_READY)
    """)

    assert [line.get("job_id") for line in lines] == ["job_1", "job_1", None]
    assert lines[1]["event"] == "connection lost"


def test_lines_below_the_level_are_left_out():
    lines = lines_of("""
        log.debug(Event.JOB_CLAIMED)
        logging.getLogger("celery").debug("tick")
        log.warning(Event.STORE_LOST)
    """)

    assert [line["event"] for line in lines] == ["store lost"]


def test_line_breaks_and_foreign_letters_cannot_start_a_second_line():
    (line,) = lines_of(r'log.info(Event.REQUEST_SERVED, reason="a\r\nb\u2028c\x1b[31mď")')

    assert line["reason"] == "a\r\nb\u2028c\x1b[31mď"


@pytest.mark.parametrize("field", sorted(WITHHELD_FIELDS))
def test_a_field_for_what_users_wrote_is_withheld(field):
    (line,) = lines_of(f'log.info(Event.JOB_ACCEPTED, **{{"{field}": "{MARKER}"}})')

    assert line[field] == WITHHELD


def test_what_users_wrote_is_withheld_inside_other_fields_too():
    (line,) = lines_of(f'log.info(Event.JOB_ACCEPTED, body={{"a": [{{"Prompt": "{MARKER}"}}]}})')

    assert line["body"] == {"a": [{"Prompt": WITHHELD}]}


def test_an_object_is_named_and_not_quoted():
    (line,) = lines_of(f"""
        class Request:
            def __repr__(self):
                return "{MARKER}"

        log.info(Event.JOB_ACCEPTED, request=Request())
    """)

    assert line["request"] == "<Request>"


def test_numbers_that_are_not_json_become_null():
    (line,) = lines_of('log.info(Event.JOB_FINISHED, latency_ms=float("nan"))')

    assert line["latency_ms"] is None


def test_an_exception_is_told_by_type_message_and_place_with_its_cause():
    (line,) = lines_of("""
        try:
            try:
                raise ConnectionError("store is away")
            except ConnectionError as error:
                raise RuntimeError("turn failed") from error
        except RuntimeError:
            log.exception(Event.TURN_FAILED)
    """)

    told = [(error["type"], error["message"]) for error in line["exception"]]
    assert told == [
        ("builtins.RuntimeError", "turn failed"),
        ("builtins.ConnectionError", "store is away"),
    ]
    assert line["exception"][0]["frames"]


@pytest.mark.parametrize("exception", ["ValueError", "KeyError", "TypeError"])
def test_an_exception_that_quotes_values_is_told_without_its_message(exception):
    (line,) = lines_of(f"""
        try:
            raise {exception}("{MARKER}")
        except {exception}:
            logging.getLogger("celery").exception("task failed")
    """)

    assert MARKER not in json.dumps(line)
    assert line["exception"][0]["type"] == f"builtins.{exception}"


def test_a_warning_becomes_a_line():
    (line,) = lines_of('import warnings; warnings.warn("too old", stacklevel=1)')

    assert line["logger"] == "py.warnings"


def test_loggers_that_speak_of_every_url_are_quiet():
    lines = lines_of("""
        logging.getLogger("httpx").info("HTTP Request: POST https://example.org/?key=1")
        logging.getLogger("werkzeug").info("GET /?key=1")
    """)

    assert lines == []


def test_gunicorn_speaks_the_same_lines():
    (line,) = lines_of("""
        from gunicorn.config import Config
        from gunicorn.glogging import Logger

        settings = Config()
        settings.set("logconfig_dict", logging_config("api", "INFO"))
        Logger(settings).info("Listening at: %s", "http://127.0.0.1:8100")
    """)

    assert line["event"] == "Listening at: http://127.0.0.1:8100"
    assert line["logger"] == "gunicorn.error"


def lines_of(script: str) -> list[dict[str, Any]]:
    """Run `script` under our logging and return its lines; nothing may go to stderr."""
    setup = """
        import logging
        import structlog
        from ops.logs import Event, configure_logging, logging_config

        configure_logging("engine", "INFO")
        log = structlog.stdlib.get_logger("workers.serving")
    """
    done = subprocess.run(
        [sys.executable, "-c", _dedent(setup) + _dedent(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def _dedent(script: str) -> str:
    return textwrap.dedent(script) + "\n"
