"""The connection to Redis and its scripts: how they are loaded, and what their failures become.
Knows no verb.

A call that failed because of the store raises StoreUnavailable, never a redis exception, and never
hangs longer than the client's timeouts.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from queueing import keys
from queueing.errors import StoreUnavailable

_SCRIPTS = Path(__file__).with_name("scripts")


def connect(
    url: str, *, connect_timeout_s: float = 1.0, timeout_s: float = 5.0, max_connections: int = 256
) -> "redis.Redis":
    """Return a client that gives up instead of hanging. Nothing is sent until its first command."""
    client: redis.Redis = redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_connect_timeout=connect_timeout_s,
        socket_timeout=timeout_s,
        socket_keepalive=True,
        health_check_interval=15,
        max_connections=max_connections,
        retry=Retry(NoBackoff(), 1),
    )
    return client


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn the client's exceptions into StoreUnavailable; a script's own fault stays what it is."""
    try:
        yield
    except redis.TimeoutError as error:
        raise StoreUnavailable("timeout") from error
    except redis.ConnectionError as error:
        raise StoreUnavailable("connection") from error
    except redis.ResponseError as error:
        kind = _refusal(error)
        if kind is None:
            raise
        raise StoreUnavailable(kind) from error


def _refusal(error: redis.ResponseError) -> str | None:
    # The client makes types of two refusals and takes their names out of the message.
    if isinstance(error, redis.OutOfMemoryError):
        return "oom"
    if isinstance(error, redis.ReadOnlyError):
        return "readonly"
    message = str(error)
    for marker, kind in (
        ("OOM", "oom"),
        ("MISCONF", "misconf"),
        ("READONLY", "readonly"),
        ("LOADING", "connection"),
        ("BUSY", "timeout"),
    ):
        if marker in message[:60]:
            return kind
    return None


# What verbs share, in the order in which each part needs those before it.
_PARTS = ("_head", "_tenants", "_places", "_events", "_batches", "_ends")
_RUN = "local reply = verb()\nwrite_gathered()\nreturn reply\n"


@cache
def script_text(name: str, *, allow_oom: bool) -> str:
    """Return a verb's whole script: flags, key functions, shared parts, the verb.

    The verb becomes a function, so that what it gathered is written wherever it returns. All but
    the verb is run at every call, so that it gets no parts that nothing in it names.
    """
    flags = "#!lua flags=allow-oom\n" if allow_oom else "#!lua\n"
    text = f"local function verb()\n{_source(name)}end\n{_RUN}"
    for part in reversed(_PARTS):
        if _names_something_of(_source(part), text):
            text = _source(part) + text
    return f"{flags}local P = KEYS[1]\n{keys.lua_key_functions(text)}{text}"


def _source(name: str) -> str:
    return (_SCRIPTS / f"{name}.lua").read_text()


def _names_something_of(part: str, text: str) -> bool:
    made = re.findall(r"^local (?:function )?(\w+)", part, re.MULTILINE)
    return re.search(rf"\b({'|'.join(made)})\b", text) is not None


class Script:
    """One verb's script on one client; loads itself again after the server lost it."""

    def __init__(self, client: "redis.Redis", name: str, prefix: str, *, allow_oom: bool) -> None:
        self._script = client.register_script(script_text(name, allow_oom=allow_oom))
        self._prefix = prefix

    def __call__(
        self, *args: Any, client: "redis.Redis | redis.client.Pipeline | None" = None
    ) -> Any:
        """Run it with the prefix as its one key; on a pipeline the reply comes from its execute."""
        with translated_errors():
            return self._script(keys=[self._prefix], args=args, client=client)
