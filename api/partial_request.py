"""PartialRequest: what has come of an HTTP request so far, and whether that is all of it.

Knows no more of HTTP/1.1 than where a request ends; what is no HTTP is whole at once, for the
server's own parser to refuse.
"""

import re

_HEAD_END = b"\r\n\r\n"
_HEAD_LIMIT = 65_536
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*chunked", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)
# The last chunk with what may follow it. Found too early, the rest is read in the thread.
_LAST_CHUNK = re.compile(rb"\r\n0+(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n\Z")
_TAIL = 4_096


class PartialRequest:
    """What has come of one request; it knows no more of HTTP than where a request ends."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head_end = -1
        self._whole_at: int | None = None
        self.data = bytearray()
        self.expects_continue = False

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.data += piece
        if self._head_end < 0:
            self._read_head(max(0, len(self.data) - len(piece) - len(_HEAD_END)))

    @property
    def is_whole(self) -> bool:
        """True once it can be handed over: all of it is here, or more than is gathered."""
        if self._head_end < 0:
            return len(self.data) > _HEAD_LIMIT
        if self.is_upload:
            return True
        if self._whole_at is None:
            return _LAST_CHUNK.search(self.data[self._head_end - 2 :][-_TAIL:]) is not None
        return len(self.data) >= self._whole_at

    @property
    def is_upload(self) -> bool:
        """True once its body is known to be larger than may be gathered."""
        if self._head_end < 0:
            return False
        num_bytes = max(len(self.data), self._whole_at or 0) - self._head_end
        return num_bytes > self._max_bytes

    def _read_head(self, start: int) -> None:
        found = self.data.find(_HEAD_END, start)
        if found < 0:
            return
        self._head_end = found + len(_HEAD_END)
        head = bytes(self.data[: self._head_end])
        length = _LENGTH.search(head)
        body_bytes = int(length[1]) if length else 0
        if not _CHUNKED.search(head):
            self._whole_at = self._head_end + body_bytes
        if _EXPECT.search(head) and not self.is_whole:
            # Whoever waits for leave to send gets it here; the thread is not to give it again.
            self.expects_continue = True
            shorter = _EXPECT.sub(b"", head)
            self.data[: self._head_end] = shorter
            self._head_end = len(shorter)
            if self._whole_at is not None:
                self._whole_at -= len(head) - len(shorter)
