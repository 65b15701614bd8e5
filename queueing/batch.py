"""Batch: one OpenAI-style bulk job of many lines, as records. Knows no Redis and no disk.

    validating ──> in_progress ──> finalizing ──> completed | expired
        └──> failed     any of these ──> cancelling ──> cancelled

A line is accounted for when it is in a segment: a piece of the output or the error file that the
batch's progress names. Progress is written by the tick that holds the batch's lease and by nobody
else, as a whole and together with what it says was done. Hence the law that every line ends in one
file exactly once: lines up to the cursor were queued or are accounted for, lines beyond it are not
harvested, and what no progress names does not exist.
"""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from queueing.job import Usage

VERSION = 1
MAX_FAULTS = 100


class BatchStatus(StrEnum):
    """Where a batch is; see the diagram above."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True once nothing can change any more."""
        return self in (
            BatchStatus.FAILED,
            BatchStatus.COMPLETED,
            BatchStatus.EXPIRED,
            BatchStatus.CANCELLED,
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a batch's input; `line` counts from 1, None for the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the input was read: the byte after the last line, its number, requests up to it."""

    offset: int = 0
    line: int = 0
    num_requests: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """All that the ticks of a batch have done. `total` is None until the input was validated.

    `completed` lines are in the output segments, `failed` ones in the error segments. `is_expired`
    is set once no more lines are sent because the window is over.
    """

    cursor: Cursor = Cursor()
    total: int | None = None
    completed: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    segments: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()
    is_expired: bool = False

    @property
    def num_accounted(self) -> int:
        """Lines that are in a segment."""
        return self.completed + self.failed

    @property
    def num_in_flight(self) -> int:
        """Lines that were sent and are not in a segment yet."""
        return self.cursor.num_requests - self.num_accounted

    @property
    def is_all_sent(self) -> bool:
        """True when no line is left to send."""
        return self.cursor.num_requests == self.total

    @property
    def is_settled(self) -> bool:
        """True when every line is in a segment."""
        return self.num_accounted == self.total


@dataclass(frozen=True, slots=True)
class Batch:
    """What is known of a batch now. `reached_s` maps a status to the instant it was entered.

    Instants are seconds of the store's clock; `now_s` is the one at which this was read. `window`
    is the most lines in the queue at once.
    """

    id: str
    tenant: str
    status: BatchStatus
    endpoint: str
    input_file: str
    completion_window: str
    window: int
    metadata: dict[str, str] | None
    output_ttl_s: int | None
    output_file: str | None
    error_file: str | None
    created_s: float
    expires_s: float
    now_s: float
    reached_s: dict[BatchStatus, float]
    progress: Progress


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch somebody asks for."""

    id: str
    tenant: str
    input_file: str
    endpoint: str
    completion_window: str
    window_s: int
    window: int
    metadata: dict[str, str] | None = None
    output_ttl_s: int | None = None


class UnknownProgress(ValueError):
    """The progress was written by a newer promptmill."""


def encode_progress(progress: Progress) -> str:
    """Write progress as JSON."""
    return json.dumps({"v": VERSION, **asdict(progress)}, separators=(",", ":"))


def decode_progress(payload: str) -> Progress:
    """Read progress; raises UnknownProgress."""
    fields: dict[str, Any] = json.loads(payload)  # JSON, checked by the constructors
    version = fields.pop("v")
    if version != VERSION:
        raise UnknownProgress(f"progress version {version}, this process reads {VERSION}")
    return Progress(
        cursor=Cursor(**fields.pop("cursor")),
        usage=Usage(**fields.pop("usage")),
        segments=tuple(fields.pop("segments")),
        faults=tuple(Fault(**fault) for fault in fields.pop("faults")),
        notes=tuple(fields.pop("notes")),
        **fields,
    )
