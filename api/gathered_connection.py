"""GatheredConnection: a client's connection whose requests are read before they get a thread.

Owns how long the thread may still read and write on it, and how it ends: not by waiting for the
client, but by whoever lingers on many at once. Built on gunicorn 27's TConn.
"""

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from gunicorn.config import Config  # type: ignore[import-untyped]
from gunicorn.http.parser import RequestParser  # type: ignore[import-untyped]
from gunicorn.http.unreader import SocketUnreader  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn  # type: ignore[import-untyped]

from api.partial_request import PartialRequest


@dataclass(frozen=True, slots=True)
class GatherLimits:
    """How long a request may take, how much of it is gathered, and how fast an upload must be.

    `max_connections` and `max_bytes` bound all that is being gathered at once.
    """

    max_request_s: float = 30.0
    max_request_bytes: int = 1_048_576
    min_bytes_per_s: int = 131_072
    max_connections: int = 512
    max_bytes: int = 67_108_864


class GatheredConnection(TConn):  # type: ignore[misc]  # gunicorn has no types
    """One client; `linger` takes its socket when it is to be closed with an answer on its way."""

    def __init__(
        self,
        config: Config,
        accepted: tuple[socket.socket, Any],  # an address is a tuple of what its family has
        limits: GatherLimits,
        linger: Callable[[socket.socket], None],
    ) -> None:
        client, address = accepted
        super().__init__(config, client, address, client.getsockname())
        # A client that does not read its answer must not keep a thread either.
        _limit_sends(client, limits.max_request_s)
        self._linger = linger
        self.parser = _Parser(config, client, address)
        self.parser.unreader = TimedUnreader(client, limits)
        self.initialized = True

    def begin(self, request: PartialRequest, until_s: float) -> None:
        """Take what was gathered of the next request, and when its time is up."""
        # Of an upload that is refused nobody knows how much is still to come.
        self.parser.is_last = request.is_upload
        self.parser.unreader.begin(bytes(request.data), until_s)
        self.data_ready = True

    def close(self, graceful: bool = False) -> None:  # noqa: FBT001, FBT002  gunicorn's signature
        """Close, with an answer on its way only once the client has had time to read it."""
        if graceful:
            self._linger(self.sock)
        else:
            super().close()


class TimedUnreader(SocketUnreader):  # type: ignore[misc]  # gunicorn has no types
    """Reads what was not gathered, at a least speed: its time grows with what has come."""

    def __init__(self, client: socket.socket, limits: GatherLimits) -> None:
        super().__init__(client)
        self._limits = limits
        self._until_s = 0.0

    def begin(self, data: bytes, until_s: float) -> None:
        """Take the next request's beginning."""
        self._until_s = until_s
        self.unread(data)

    def chunk(self, size_hint: int | None = None) -> bytes:
        """Return the next bytes; raises TimeoutError for a request that is too slow."""
        left_s = self._until_s - monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.sock.settimeout(left_s)
        try:
            piece: bytes = super().chunk(size_hint)
        finally:
            self.sock.settimeout(None)
        self._until_s += len(piece) / self._limits.min_bytes_per_s
        return piece


class _Parser(RequestParser):  # type: ignore[misc]  # gunicorn has no types
    is_last = False

    def __next__(self) -> Any:  # gunicorn's request
        request = super().__next__()
        if self.is_last:
            request.force_close()
        return request


def _limit_sends(client: socket.socket, seconds: float) -> None:
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
