"""Gathering: a request gets one of gunicorn's threads only once all of it is here.

gunicorn's threaded worker reads a request in the thread that answers it, so that as many slow
clients as there are threads stop everybody. Here the main loop gathers what comes, on all
connections at once, and hands over what is whole. A request that is not whole in time is answered
408 and cut; so is the oldest when too many are being gathered. What is larger than may be gathered
(an upload) is handed over early and read in its thread at a least speed, a few at a time: the
others wait for their turn, or for their time to be up.

Built on gunicorn 27's ThreadWorker and its own main loop, which calls accept, the readers of
sockets and murder_pending; hence the version is pinned.
"""

import socket
import struct
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from selectors import EVENT_READ
from time import monotonic

from gunicorn.http import get_parser  # type: ignore[import-untyped]
from gunicorn.http.unreader import SocketUnreader  # type: ignore[import-untyped]
from gunicorn.workers.gthread import TConn, ThreadWorker  # type: ignore[import-untyped]

from api.partial_request import PartialRequest

_READ_BYTES = 65_536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_STOPPING_S = 2.0


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


@dataclass(slots=True, eq=False)
class _Gathered:
    connection: TConn
    request: PartialRequest
    until_s: float
    is_read: bool = True


class TimedUnreader(SocketUnreader):  # type: ignore[misc]  # gunicorn has no types
    """Reads what was not gathered, at a least speed: its time grows with what has come."""

    def __init__(self, sock: socket.socket, limits: GatherLimits) -> None:
        super().__init__(sock)
        self._limits = limits
        self._until_s = monotonic() + limits.max_request_s

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

    def begin(self, data: bytes, until_s: float) -> None:
        """Take what was gathered of the next request, and when its time is up."""
        self._until_s = until_s
        self.unread(data)


class GatheringWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's threaded worker, whose threads never wait for a slow client's small request."""

    def init_process(self) -> None:
        """Begin with nothing gathered; `app` is the server, which names the limits."""
        self._limits: GatherLimits = self.app.gather_limits
        # In the order in which their time is up.
        self._gathered: dict[TConn, _Gathered] = {}
        self._uploading: set[TConn] = set()
        self._waiting: deque[_Gathered] = deque()
        super().init_process()

    def accept(self, listener: socket.socket) -> None:
        """Take a connection and gather its first request."""
        try:
            client, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            # Whoever was there has left; the loop comes back for the next.
            return
        self.nr_conns += 1
        # A client that does not read its answer must not keep a thread either.
        _limit_sends(client, self._limits.max_request_s)
        connection = TConn(self.cfg, client, address, listener.getsockname())
        connection.parser = get_parser(self.cfg, client, address)
        connection.parser.unreader = TimedUnreader(client, self._limits)
        connection.initialized = True
        self._begin(connection)

    def on_client_socket_readable(self, conn: TConn, client: socket.socket) -> None:
        """Gather the next request of a connection that was kept alive."""
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._begin(conn)

    def finish_request(self, conn: TConn, fs: "Future[object]") -> None:
        """Take a connection back from its thread; after an upload the next one has its turn."""
        super().finish_request(conn, fs)
        if conn in self._uploading:
            self._uploading.remove(conn)
            if self._waiting:
                self._hand_over(self._waiting.popleft())

    def murder_pending(self) -> None:
        """Cut whoever is too late; gunicorn's loop calls this once a second at least."""
        super().murder_pending()
        now_s = monotonic() + (0 if self.alive else self._limits.max_request_s - _STOPPING_S)
        for gathered in list(self._gathered.values()):
            if gathered.until_s > now_s:
                break
            self._cut(gathered)

    def _begin(self, connection: TConn) -> None:
        request = PartialRequest(self._limits.max_request_bytes)
        gathered = _Gathered(connection, request, monotonic() + self._limits.max_request_s)
        self._gathered[connection] = gathered
        connection.sock.settimeout(0)
        self.poller.register(connection.sock, EVENT_READ, partial(self._gather, gathered))
        # As a rule all of a small request is here already.
        self._gather(gathered, connection.sock)
        if len(self._gathered) > self._limits.max_connections or self._is_full():
            self._cut(next(iter(self._gathered.values())))

    def _gather(self, gathered: _Gathered, client: socket.socket) -> None:
        try:
            piece = client.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop(gathered)
            return
        request = gathered.request
        request.add(piece)
        if request.is_whole:
            self._hand_over(gathered)
        elif request.expects_continue:
            request.expects_continue = False
            _tell(client, _CONTINUE)

    def _hand_over(self, gathered: _Gathered) -> None:
        connection = gathered.connection
        if gathered.request.is_upload:
            if len(self._uploading) >= max(1, self.cfg.threads // 4):
                self._stop_reading(gathered)
                self._waiting.append(gathered)
                return
            self._uploading.add(connection)
        self._forget(gathered)
        connection.parser.unreader.begin(bytes(gathered.request.data), gathered.until_s)
        connection.data_ready = True
        self.enqueue_req(connection)

    def _cut(self, gathered: _Gathered) -> None:
        _tell(gathered.connection.sock, _TOO_LATE)
        self._drop(gathered)

    def _drop(self, gathered: _Gathered) -> None:
        self._forget(gathered)
        self.nr_conns -= 1
        gathered.connection.close()

    def _forget(self, gathered: _Gathered) -> None:
        del self._gathered[gathered.connection]
        self._stop_reading(gathered)
        if gathered in self._waiting:
            self._waiting.remove(gathered)

    def _stop_reading(self, gathered: _Gathered) -> None:
        if gathered.is_read:
            self.poller.unregister(gathered.connection.sock)
            gathered.is_read = False

    def _is_full(self) -> bool:
        return (
            sum(len(one.request.data) for one in self._gathered.values()) > self._limits.max_bytes
        )


def _limit_sends(client: socket.socket, seconds: float) -> None:
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def _tell(client: socket.socket, words: bytes) -> None:
    """Send a few bytes if they fit; whoever can't take them is not worth a wait."""
    try:
        client.send(words, socket.MSG_DONTWAIT)
    except OSError:
        return
