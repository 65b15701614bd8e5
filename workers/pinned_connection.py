"""Sockets behind httpcore: to given addresses, ended by one deadline, reading a bounded answer.

httpcore asks its NetworkBackend for a connection to a name; this one connects to addresses that
were checked before and looks nothing up. Its timeouts are per call; here every call gets what is
left until the deadline. The name stays in use for SNI, the certificate and the Host header. Must
not know webhooks.
"""

import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore

# httpcore's own type of a socket option; ours are none, but the signature has it.
_SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)


class Deadline:
    """The one instant by which everything has to be over."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Return what is left; raises TimeoutError when that is nothing."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        return left

    def shorten(self, timeout_s: float) -> None:
        """Leave at most `timeout_s` from now."""
        self._at = min(self._at, time.monotonic() + timeout_s)


class PinnedBackend(httpcore.NetworkBackend):
    """Connects to the first of `addresses` that answers, each having its share of the time left."""

    def __init__(self, addresses: Sequence[str], deadline: Deadline, max_bytes: int) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._max_bytes = max_bytes

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - the name was looked up and checked before
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline rules
        local_address: str | None = None,  # noqa: ARG002 - the system chooses
        socket_options: Iterable[_SocketOption] | None = None,  # noqa: ARG002 - none are set
    ) -> httpcore.NetworkStream:
        """Return a connection; raises OSError of the last address that was tried."""
        *alternatives, last = self._addresses
        for position, address in enumerate(alternatives):
            share_s = self._deadline.remaining_s() / (len(self._addresses) - position)
            try:
                return self._stream(socket.create_connection((address, port), share_s))
            except OSError:
                # Another address of the same receiver may do; the last one's failure is reported.
                continue
        remaining_s = self._deadline.remaining_s()
        return self._stream(socket.create_connection((last, port), remaining_s))

    def _stream(self, connected: socket.socket) -> httpcore.NetworkStream:
        return _DeadlineStream(connected, self._deadline, self._max_bytes)


class _DeadlineStream(httpcore.NetworkStream):
    """A connected socket. After `max_bytes` it reads as if the other side had closed."""

    def __init__(self, connected: socket.socket, deadline: Deadline, max_bytes: int) -> None:
        self._socket = connected
        self._deadline = deadline
        self._bytes_left = max_bytes

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        self._socket.settimeout(self._deadline.remaining_s())
        received = self._socket.recv(min(max_bytes, self._bytes_left)) if self._bytes_left else b""
        self._bytes_left -= len(received)
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        self._socket.settimeout(self._deadline.remaining_s())
        self._socket.sendall(buffer)  # its timeout is for all of it

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 - the deadline rules
    ) -> httpcore.NetworkStream:
        try:
            self._socket.settimeout(self._deadline.remaining_s())
            wrapped = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except OSError:
            self._socket.close()
            raise
        return _DeadlineStream(wrapped, self._deadline, self._bytes_left)

    # httpcore's own signature: what comes back depends on what is asked for, hence Any.
    def get_extra_info(self, info: str) -> Any:
        return self._socket if info == "ssl_object" and self._is_tls else None

    @property
    def _is_tls(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket)
