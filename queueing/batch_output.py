"""The lines of a batch's output and error files, and where they are collected before.

Owns the wire format of a line and the segments: small files, each written once by one tick under a
name that carries the tick's fence, which exist for the batch only once its progress names them. So
a tick that died or was taken over leaves nothing but files that nobody reads. Knows no Redis.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from queueing.draft import Draft, sync_folder, translated_disk_errors
from queueing.errors import FailureCode
from queueing.job import JobError, JobResult, JobState, Usage

_STATUS_OF_CODE = {
    FailureCode.MODEL_NOT_FOUND: 404,
    FailureCode.QUOTA_EXCEEDED: 429,
    FailureCode.ENGINE_ERROR: 500,
    FailureCode.OUT_OF_MEMORY: 500,
    FailureCode.WORKER_LOST: 500,
    FailureCode.RESULT_EXPIRED: 500,
}


class LineKind(StrEnum):
    """Which of the two files a line belongs to; ends the names of segments."""

    OUTPUT = "output"
    ERROR = "error"


class NotRun(StrEnum):
    """Why a line never got a response; on the wire."""

    EXPIRED = "batch_expired"
    CANCELLED = "batch_cancelled"
    FAILED = "batch_failed"


_NOT_RUN_MESSAGES = {
    NotRun.EXPIRED: "the batch's completion window was over before this line ran",
    NotRun.CANCELLED: "the batch was cancelled before this line ran",
    NotRun.FAILED: "the batch failed before this line ran; its errors say why",
}


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One finished line: its file, its JSON, and the tokens it took."""

    kind: LineKind
    payload: dict[str, Any]  # JSON in OpenAI's shape
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class LineId:
    """Which line an output line answers: the id of its job and the user's own."""

    job_id: str
    custom_id: str


def line_of_answer(line_id: LineId, body: dict[str, Any], usage: Usage) -> OutputLine:
    """Return the line of a job that completed; `body` is its endpoint's answer."""
    return OutputLine(LineKind.OUTPUT, _answered(line_id, 200, body), usage)


def line_of_failure(line_id: LineId, result: JobResult) -> OutputLine:
    """Return the line of a job that did not complete; one that nobody ran says why."""
    if result.state is JobState.CANCELLED:
        return line_not_run(line_id, NotRun.CANCELLED)
    if result.state is JobState.EXPIRED:
        return line_not_run(line_id, NotRun.EXPIRED)
    assert result.error is not None, "a job that did not complete says why"
    return line_of_error(line_id, result.error)


def line_of_error(line_id: LineId, error: JobError) -> OutputLine:
    """Return the line of a request that was refused or failed."""
    status = _STATUS_OF_CODE.get(error.code, 400)
    body = {
        "error": {
            "message": error.message,
            "type": "invalid_request_error" if status < 500 else "server_error",
            "param": error.param,
            "code": error.code.value,
        }
    }
    return OutputLine(LineKind.ERROR, _answered(line_id, status, body))


def line_not_run(line_id: LineId, reason: NotRun) -> OutputLine:
    """Return the line of a request that nobody ran."""
    error = {"code": reason.value, "message": _NOT_RUN_MESSAGES[reason]}
    return OutputLine(LineKind.ERROR, _line(line_id, None, error))


class SegmentFolder:
    """Where one batch's segments are."""

    def __init__(self, data_dir: Path, batch_id: str) -> None:
        self._folder = data_dir / "batches" / batch_id

    @staticmethod
    def all_in(data_dir: Path) -> list[Path]:
        """Return the folders of all batches that have one; each is named by its batch's id."""
        folder = data_dir / "batches"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def write(self, name: str, lines: Iterable[OutputLine]) -> None:
        """Write one segment, whole and on disk when this returns.

        Raises StorageFull, and leaves nothing.
        """
        path = self._folder / name
        with translated_disk_errors():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with path.open("wb") as stream:
                    for line in lines:
                        stream.write(_encode(line.payload) + b"\n")
                    stream.flush()
                    os.fsync(stream.fileno())
                sync_folder(self._folder)
            except OSError:
                path.unlink(missing_ok=True)
                raise

    def join(self, names: Iterable[str], draft: Draft) -> int:
        """Append segments to a draft; return how many lines they hold."""
        num_lines = 0
        for name in names:
            with (self._folder / name).open("rb") as stream:
                while part := stream.read(1 << 20):
                    num_lines += part.count(b"\n")
                    draft.write(part)
        return num_lines

    def remove(self) -> None:
        """Remove all of it; the batch has ended."""
        shutil.rmtree(self._folder, ignore_errors=True)


def segment_name(fence: int, number: int, kind: LineKind) -> str:
    """Name the `number`th segment of a batch, written by the tick with this fence.

    Neither a tick that was taken over nor one that is repeated writes over a segment that counts.
    """
    return f"{fence}-{number}.{kind.value}"


def kind_of_segment(name: str) -> LineKind:
    """Return which file a segment is a piece of."""
    return LineKind(name.rpartition(".")[2])


def _answered(line_id: LineId, status: int, body: dict[str, Any]) -> dict[str, Any]:
    request_id = "req_" + _random_part(line_id.job_id)
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(line_id, response, None)


def _line(
    line_id: LineId, response: dict[str, Any] | None, error: dict[str, str] | None
) -> dict[str, Any]:
    return {
        "id": "batch_req_" + _random_part(line_id.job_id),
        "custom_id": line_id.custom_id,
        "response": response,
        "error": error,
    }


def _encode(payload: dict[str, Any]) -> bytes:
    # ASCII, so that no reader takes a separator of Unicode's for the end of a line.
    return json.dumps(payload, separators=(",", ":"), allow_nan=False).encode("ascii")


def _random_part(job_id: str) -> str:
    return job_id.rpartition("_")[2]
