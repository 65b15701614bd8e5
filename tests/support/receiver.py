"""A receiver of webhooks on loopback that behaves as well or as badly as a test wants.

`receiver.pem` is its self-signed certificate for receiver.example, `impostor.pem` another one for
that name, which nobody trusts; both made by:
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj
/CN=receiver.example -addext subjectAltName=DNS:receiver.example
"""

import contextlib
import gzip
import queue
import socket
import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CERTIFICATE = Path(__file__).with_name("receiver.pem")
IMPOSTOR = Path(__file__).with_name("impostor.pem")


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came; header names in lower case, `at` on the monotonic clock."""

    at: float
    request_line: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """The receiver's end of one connection, handed to its behaviour once the request is in."""

    connection: socket.socket
    stopped: threading.Event
    received: Received

    def say(self, raw: bytes) -> None:
        """Send bytes as they are."""
        self.connection.sendall(raw)

    def drip(self, raw: bytes, pause_s: float) -> None:
        """Send a byte at a time until the other side has enough or the test is over."""
        for byte in raw:
            self.connection.sendall(bytes([byte]))
            if self.stopped.wait(pause_s):
                return


Behaviour = Callable[[Exchange], None]


def answers(status: int, body: bytes = b"ok", **headers: str) -> Behaviour:
    """Answer properly; `retry_after="3"` becomes the header retry-after."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} x", f"content-length: {len(body)}", *lines])
    return lambda exchange: exchange.say(head.encode() + b"\r\n\r\n" + body)


def answers_in_turn(*behaviours: Behaviour) -> Behaviour:
    """Behave in one way after the other; the last one stays."""
    turns = iter(behaviours)
    lock = threading.Lock()

    def behave(exchange: Exchange) -> None:
        with lock:
            behaviour = next(turns, behaviours[-1])
        behaviour(exchange)

    return behave


def hangs(exchange: Exchange) -> None:
    """Say nothing for as long as the test lasts."""
    exchange.stopped.wait()


def drips_headers(exchange: Exchange) -> None:
    """Never come to the end of the headers, a byte at a time."""
    exchange.drip(b"HTTP/1.1 200 OK\r\n" + b"x-drip: 1\r\n" * 1_000, pause_s=0.02)


def drips_body(exchange: Exchange) -> None:
    """Succeed, and never come to the end of the body."""
    exchange.say(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    exchange.drip(b"x" * 100_000, pause_s=0.02)


def floods_body(exchange: Exchange) -> None:
    """Succeed with an endless body, as fast as it is taken."""
    exchange.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while not exchange.stopped.is_set():
        exchange.say(b"10000\r\n" + b"x" * 65_536 + b"\r\n")


def floods_headers(exchange: Exchange) -> None:
    """Send endless headers, as fast as they are taken."""
    exchange.say(b"HTTP/1.1 200 OK\r\n")
    while not exchange.stopped.is_set():
        exchange.say(b"x-flood: " + b"x" * 1_000 + b"\r\n")


def sends_a_gzip_bomb(exchange: Exchange) -> None:
    """Succeed with 5 MB in 5 kB."""
    bomb = gzip.compress(b"\0" * 5_000_000)
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"
    exchange.say(head.encode() + bomb)


def resets(exchange: Exchange) -> None:
    """Drop the connection in the rudest way."""
    exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def speaks_no_http(exchange: Exchange) -> None:
    """Answer in another protocol."""
    exchange.say(b"220 mail.example ESMTP\r\n")


class Receiver:
    """The server: remembers what came, behaves as told. Use `receiver(...)` to run one."""

    def __init__(self, behaviour: Behaviour, tls: ssl.SSLContext | None, port: int) -> None:
        self.arrivals: queue.Queue[Received] = queue.Queue()
        self.stopped = threading.Event()
        self._scheme = "https" if tls else "http"

        def handle(connection: socket.socket) -> None:
            # A client that gives up early is what half of these tests are about.
            with contextlib.suppress(OSError):
                stream = tls.wrap_socket(connection, server_side=True) if tls else connection
                with stream:
                    received = _read_request(stream)
                    self.arrivals.put(received)
                    behaviour(Exchange(stream, self.stopped, received))

        self._server = _Server(handle, port)

    @property
    def port(self) -> int:
        """The loopback port it listens on."""
        port: int = self._server.server_address[1]
        return port

    def url(self, host: str = "127.0.0.1") -> str:
        """Return where to send webhooks to."""
        return f"{self._scheme}://{host}:{self.port}/in"

    def take(self, count: int, timeout_s: float = 20.0) -> list[Received]:
        """Wait for that many requests and return them in the order they came."""
        return [self.arrivals.get(timeout=timeout_s) for _ in range(count)]

    def run(self) -> None:
        """Serve until stopped."""
        self._server.serve_forever(poll_interval=0.02)

    def stop(self) -> None:
        """Let every behaviour end and close."""
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiver(
    behaviour: Behaviour | None = None, *, tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[Receiver]:
    """Run a receiver that answers 200, or behaves as told; on port 0 it picks a free one."""
    server = Receiver(behaviour or answers(200), tls, port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def server_tls(certificate: Path = CERTIFICATE) -> ssl.SSLContext:
    """Return the receiver's side of TLS, with the certificate for receiver.example."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def client_tls() -> ssl.SSLContext:
    """Return a sender's side that trusts that certificate and no other."""
    return ssl.create_default_context(cafile=str(CERTIFICATE))


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handle: Callable[[socket.socket], None], port: int) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                handle(self.request)

        super().__init__(("127.0.0.1", port), Handler)


def _read_request(connection: socket.socket) -> Received:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += _some(connection)
    head, _, body = raw.partition(b"\r\n\r\n")
    request_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += _some(connection)
    return Received(time.monotonic(), request_line, headers, body)


def _some(connection: socket.socket) -> bytes:
    received = connection.recv(65_536)
    if not received:
        raise ConnectionError("the client closed")
    return received
