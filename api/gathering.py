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
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from selectors import EVENT_READ
from time import monotonic

from gunicorn.workers.gthread import ThreadWorker  # type: ignore[import-untyped]

from api.gathered_connection import GatheredConnection, GatherLimits
from api.partial_request import PartialRequest

_READ_BYTES = 65_536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_STOPPING_S = 2.0
_LINGER_S = 2.0


@dataclass(slots=True, eq=False)
class _Gathered:
    connection: GatheredConnection
    request: PartialRequest
    until_s: float
    is_read: bool = True


class GatheringWorker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's threaded worker, whose threads never wait for a slow client's small request."""

    def init_process(self) -> None:
        """Begin with nothing gathered; `app` is the server, which names the limits."""
        self._limits: GatherLimits = self.app.gather_limits
        # In the order in which their time is up.
        self._gathered: dict[GatheredConnection, _Gathered] = {}
        self._uploading: set[GatheredConnection] = set()
        self._waiting: deque[_Gathered] = deque()
        self._lingering: dict[socket.socket, float] = {}
        super().init_process()

    def accept(self, listener: socket.socket) -> None:
        """Take a connection and gather its first request."""
        try:
            accepted = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            # Whoever was there has left; the loop comes back for the next.
            return
        self.nr_conns += 1
        self._begin(GatheredConnection(self.cfg, accepted, self._limits, self._linger))

    def on_client_socket_readable(self, conn: GatheredConnection, client: socket.socket) -> None:
        """Gather the next request of a connection that was kept alive."""
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        self._begin(conn)

    def finish_request(self, conn: GatheredConnection, fs: "Future[object]") -> None:
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
        for client, until_s in list(self._lingering.items()):
            if until_s <= monotonic():
                self._end(client)

    def _begin(self, connection: GatheredConnection) -> None:
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
        connection.begin(gathered.request, gathered.until_s)
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

    def _linger(self, client: socket.socket) -> None:
        """Let a client read its answer: a close with bytes unread would take it from him."""
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:
            client.close()
            return
        client.settimeout(0)
        self._lingering[client] = monotonic() + _LINGER_S
        self.poller.register(client, EVENT_READ, self._pour_away)

    def _pour_away(self, client: socket.socket) -> None:
        try:
            is_over = not client.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            self._end(client)

    def _end(self, client: socket.socket) -> None:
        del self._lingering[client]
        self.poller.unregister(client)
        client.close()

    def _stop_reading(self, gathered: _Gathered) -> None:
        if gathered.is_read:
            self.poller.unregister(gathered.connection.sock)
            gathered.is_read = False

    def _is_full(self) -> bool:
        return (
            sum(len(one.request.data) for one in self._gathered.values()) > self._limits.max_bytes
        )


def _tell(client: socket.socket, words: bytes) -> None:
    """Send a few bytes if they fit; whoever can't take them is not worth a wait."""
    try:
        client.send(words, socket.MSG_DONTWAIT)
    except OSError:
        return
