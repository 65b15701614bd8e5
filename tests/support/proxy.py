"""A TCP proxy that can be told to misbehave, between a process and its Redis.

Owns its sockets and one thread. Knows nothing of what is said over them.
"""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Weather:
    """How the connection behaves: the delay of each chunk, and which way bytes pass at all.

    `reset_share` of the replies end in a reset after half of their bytes.
    """

    delay_s: tuple[float, float] = (0.0, 0.0)
    requests_pass: bool = True
    replies_pass: bool = True
    reset_share: float = 0.0


SILENCE = Weather(requests_pass=False, replies_pass=False)


class FaultProxy:
    """Listens on a port of its own and passes on to `target_port`, as the weather allows."""

    def __init__(self, target_port: int, chance: random.Random) -> None:
        self.weather = Weather()
        self._target_port = target_port
        self._chance = chance
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._requests = asyncio.Event()
        self._replies = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        """The address for clients of the Redis behind."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Begin listening."""
        self._thread.start()
        self._call(self._listen())

    def stop(self) -> None:
        """End all connections and the thread."""
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def refuse(self) -> None:
        """Listen no more and reset what is open: the machine is up and the server is not."""
        self._call(self._shut())

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._call(self._listen())

    def set_weather(self, weather: Weather) -> None:
        """Behave otherwise from now on, open connections included."""
        self._call(self._change(weather))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _listen(self) -> None:
        await self._change(self.weather)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            _reset(writer)
        await asyncio.sleep(0)

    async def _change(self, weather: Weather) -> None:
        self.weather = weather
        for passing, passes in (
            (self._requests, weather.requests_pass),
            (self._replies, weather.replies_pass),
        ):
            if passes:
                passing.set()
            else:
                passing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            _reset(writer)
            return
        self._writers |= {writer, behind[1]}
        try:
            await asyncio.gather(
                self._pass(reader, behind[1], self._requests),
                self._pass(behind[0], writer, self._replies),
            )
        except OSError:
            pass  # either side is gone: so is the other, below
        finally:
            for end in (writer, behind[1]):
                self._writers.discard(end)
                _reset(end)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await passing.wait()
            if self.weather.delay_s[1]:
                await asyncio.sleep(self._chance.uniform(*self.weather.delay_s))
            if passing is self._replies and self._chance.random() < self.weather.reset_share:
                writer.write(data[: len(data) // 2])
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of a goodbye."""
    connection: socket.socket = writer.get_extra_info("socket")
    if not writer.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
