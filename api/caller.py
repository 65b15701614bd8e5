"""Caller: the other end of the running request's connection, and whether it is still there.

gunicorn hands the connection's socket along with the request. Other servers do not, and then nobody
is ever seen to leave before an answer is written to him.
"""

import select
import socket
from collections.abc import Mapping
from typing import Any

from queueing.errors import PromptmillError


class CallerLeft(PromptmillError):
    """Whoever asked has closed the connection; there is nobody to answer."""


class Caller:
    """Whoever waits for the answer to one request."""

    def __init__(self, connection: socket.socket | None) -> None:
        self._connection = connection

    @classmethod
    def of(cls, environ: Mapping[str, Any]) -> "Caller":
        """Return the caller of a request, given its WSGI environment."""
        return cls(environ.get("gunicorn.socket"))

    def bound_writes(self, limit_s: float) -> None:
        """Give up on a caller who takes nothing for so long; the server then closes."""
        if self._connection is not None:
            self._connection.settimeout(limit_s)

    def check_presence(self) -> None:
        """Raise CallerLeft when the connection is closed."""
        if self._connection is not None and _is_closed(self._connection):
            raise CallerLeft


def _is_closed(connection: socket.socket) -> bool:
    """Look without reading: what lies there may be the next request."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if not poll.poll(0):
        return False
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True
