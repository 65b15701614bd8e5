"""The input file of a batch: how its bytes become lines and a line becomes a request. No Redis.

A line is read strictly and never holds more memory than the longest one allowed. Rules of the
format make a Fault, which fails the batch; which `url` it is and what is inside `body` is not
looked at here, because that is the line's problem alone.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from queueing.batch import MAX_FAULTS, Cursor, Fault
from queueing.body import parse_object
from queueing.errors import RequestError

MAX_CUSTOM_ID = 512
MARK_NOTE = "a UTF-8 byte order mark at the start of the file was removed"

_MARK = b"\xef\xbb\xbf"
_FIELDS = ("custom_id", "method", "url", "body")
_WIDE_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


class InputFault(ValueError):
    """The input breaks a rule of the format."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class InputLine:
    """One line that is not blank; `after` is the cursor that has passed it. None when too long."""

    data: bytes | None
    after: Cursor


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A line that keeps the rules."""

    custom_id: str
    url: str
    body: dict[str, Any]  # JSON that its own endpoint checks


@dataclass(frozen=True, slots=True)
class Checked:
    """What a whole input file came to."""

    num_requests: int
    faults: tuple[Fault, ...]
    has_mark: bool


class InputReader:
    """Reads lines from a cursor on. `has_mark` is known once the first line was read."""

    def __init__(self, stream: BinaryIO, max_line_bytes: int, cursor: Cursor | None = None) -> None:
        self.has_mark = False
        self._stream = stream
        self._max_line_bytes = max_line_bytes
        self._cursor = cursor or Cursor()

    def __iter__(self) -> Iterator[InputLine]:
        """Yield the lines that are not blank; raises InputFault for a file that is not UTF-8."""
        cursor = self._cursor
        self._stream.seek(cursor.offset)
        if cursor.offset == 0:
            cursor = Cursor(offset=self._pass_mark())
        while True:
            data, size_bytes = self._read_line()
            if size_bytes == 0:
                return
            is_blank = data is not None and not data.strip()
            cursor = Cursor(
                cursor.offset + size_bytes,
                cursor.line + 1,
                cursor.num_requests + (0 if is_blank else 1),
            )
            if not is_blank:
                yield InputLine(data, cursor)

    def _pass_mark(self) -> int:
        head = self._stream.read(4)
        for mark, encoding in _WIDE_MARKS.items():
            if head.startswith(mark):
                raise _refused("invalid_encoding", f"the file is {encoding}; send UTF-8", 1)
        if len(head) == 4 and (head[0] == head[2] == 0 or head[1] == head[3] == 0):
            raise _refused("invalid_encoding", "the file looks like UTF-16; send UTF-8", 1)
        self.has_mark = head.startswith(_MARK)
        return self._stream.seek(len(_MARK) if self.has_mark else 0)

    def _read_line(self) -> tuple[bytes | None, int]:
        """Return a line without its end, None when it is too long, and the bytes it takes."""
        full_bytes = self._max_line_bytes + len(b"\r\n")
        data = self._stream.readline(full_bytes)
        size_bytes = len(data)
        if data.endswith(b"\n") or size_bytes < full_bytes:
            data = data.rstrip(b"\r\n")
            return (data if len(data) <= self._max_line_bytes else None), size_bytes
        while rest := self._stream.readline(65_536):
            size_bytes += len(rest)
            if rest.endswith(b"\n"):
                break
        return None, size_bytes


class InputRules:
    """What the lines of a file must keep: a form, and bounds."""

    def __init__(self, *, max_lines: int = 50_000, max_line_bytes: int = 1_048_576) -> None:
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes

    def reader(self, stream: BinaryIO, cursor: Cursor | None = None) -> InputReader:
        """Return a reader of these bounds."""
        return InputReader(stream, self._max_line_bytes, cursor)

    def check_file(self, stream: BinaryIO) -> Checked:
        """Read the whole file once. Stops at the hundredth fault and one line beyond the limit.

        Holds a digest of each custom_id, so memory is bounded by the number of lines.
        """
        reader = self.reader(stream)
        faults: list[Fault] = []
        lines_by_id: dict[bytes, int] = {}
        num_requests = 0
        try:
            for line in reader:
                num_requests = line.after.num_requests
                if num_requests > self._max_lines or len(faults) >= MAX_FAULTS:
                    break
                try:
                    self._check_unique(self.parse(line).custom_id, line.after.line, lines_by_id)
                except InputFault as error:
                    faults.append(error.fault)
        except InputFault as error:
            return Checked(0, (error.fault,), has_mark=False)
        if num_requests == 0:
            faults.append(Fault("empty_file", "the file has no lines"))
        if num_requests > self._max_lines:
            faults.append(Fault("too_many_lines", f"more than {self._max_lines} lines"))
        return Checked(num_requests, tuple(faults[:MAX_FAULTS]), reader.has_mark)

    def check_head(self, stream: BinaryIO) -> Fault | None:
        """Look at the first line alone: whether this can be such a file at all."""
        try:
            for line in self.reader(stream):
                self.parse(line)
                break
        except InputFault as error:
            return error.fault
        return None

    def parse(self, line: InputLine) -> LineRequest:
        """Return a line's request; raises InputFault."""
        number = line.after.line
        if line.data is None:
            message = f"the line is longer than {self._max_line_bytes} bytes"
            raise _refused("line_too_long", message, number)
        try:
            fields = parse_object(line.data)
        except RequestError as error:
            raise _refused("invalid_json_line", error.message, number) from error
        for name in fields:
            if name not in _FIELDS:
                raise _refused("unknown_parameter", "unknown field", number, name[:64])
        for name in _FIELDS:
            if name not in fields:
                raise _refused("missing_required_parameter", f"{name} is missing", number, name)
        return LineRequest(
            custom_id=_custom_id(fields["custom_id"], number),
            url=_url(fields, number),
            body=_body(fields, number),
        )

    def _check_unique(self, custom_id: str, number: int, lines_by_id: dict[bytes, int]) -> None:
        digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        first = lines_by_id.setdefault(digest, number)
        if first != number:
            message = f"custom_id was used on line {first} already"
            raise _refused("duplicate_custom_id", message, number, "custom_id")


def _custom_id(value: object, number: int) -> str:
    if not isinstance(value, str):
        raise _refused("invalid_custom_id", "custom_id must be a string", number, "custom_id")
    if not 1 <= len(value) <= MAX_CUSTOM_ID:
        message = f"custom_id must have 1 to {MAX_CUSTOM_ID} characters"
        raise _refused("invalid_custom_id", message, number, "custom_id")
    if not value.isprintable():
        message = "custom_id must not hold control characters"
        raise _refused("invalid_custom_id", message, number, "custom_id")
    return value


def _url(fields: dict[str, Any], number: int) -> str:
    if fields["method"] != "POST":
        raise _refused("invalid_method", "method must be POST", number, "method")
    url = fields["url"]
    if not isinstance(url, str):
        raise _refused("invalid_url", "url must be a string", number, "url")
    return url


def _body(fields: dict[str, Any], number: int) -> dict[str, Any]:
    body = fields["body"]
    if not isinstance(body, dict):
        raise _refused("invalid_body", "body must be an object", number, "body")
    return body


def _refused(code: str, message: str, line: int, param: str | None = None) -> InputFault:
    return InputFault(Fault(code, message, line, param))
