"""EngineJob: a claimed prompt job in an engine worker, whatever is made of its prompt.

Owns what its kinds share: how sequences are named after their job, when it passed the points
between its stages, and what serving, delivery and the observer need to know. Must not know Redis,
Celery, or what is made.
"""

import time
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

from engine.plan import Completion
from engine.sequence import Rank, Sequence
from queueing.errors import FailureCode
from queueing.job import Claim, JobResult, JobState

# Between a job's tag and the number of its sequence, from the second on.
_NUMBER = "+"


@dataclass(slots=True)
class StageClock:
    """When a job passed the points between its stages; monotonic seconds, None for not yet.

    An embedding has no first token: its prefill ends with the vector.
    """

    received: float = field(default_factory=time.monotonic)
    tokenised: float | None = None
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    detokenise_s: float = 0.0

    def durations_ms(self) -> dict[str, float]:
        """Return the length of each stage that was completed."""
        points = [
            ("tokenise_ms", self.received, self.tokenised),
            ("admit_ms", self.tokenised, self.admitted),
            ("prefill_ms", self.admitted, self.first_token),
            ("decode_ms", self.first_token, self.last_token),
        ]
        stages = {
            name: round((end - start) * 1000, 3)
            for name, start, end in points
            if start is not None and end is not None
        }
        return stages | {"detokenise_ms": round(self.detokenise_s * 1000, 3)}

    def stage(self) -> str:
        """Name the stage the job is in."""
        if self.first_token is not None:
            return "decode"
        return "prefill" if self.admitted is not None else "claimed"


class EngineJob(Protocol):
    """One job in the engine. `deadline` is a monotonic instant; None for none."""

    claim: Claim
    deadline: float | None
    clock: StageClock

    @property
    def tag(self) -> str:
        """The lease's tag, which is also the first sequence's id."""
        ...

    @property
    def sequences(self) -> Many[Sequence]:
        """All of its sequences."""
        ...

    @property
    def has_ended(self) -> bool:
        """True once all it makes is whole."""
        ...

    @property
    def num_steps(self) -> int:
        """Count the steps that gave it a token."""
        ...

    def is_whole(self, sequence_id: str) -> bool:
        """Tell whether what this sequence makes is whole."""
        ...

    def end(self, completion: Completion) -> None:
        """Make that whole: the sequence has ended."""
        ...

    def result(self) -> JobResult:
        """Make the result of a job that has ended."""
        ...

    def failed(self, state: JobState, code: FailureCode, message: str) -> JobResult:
        """Make the result of a job that ended otherwise."""
        ...


def sequence_id(tag: str, index: int) -> str:
    """Name the sequence of this index of a job."""
    return f"{tag}{_NUMBER}{index}" if index else tag


def tag_of(sequence_id: str) -> str:
    """Return the tag of the job that a sequence belongs to."""
    return sequence_id.partition(_NUMBER)[0]


def index_of(sequence_id: str) -> int:
    """Return which of its job's sequences it is."""
    return int(sequence_id.partition(_NUMBER)[2] or 0)


def rank_of(claim: Claim) -> Rank:
    """Return the place of a claim's sequences in the engine."""
    return (float(claim.priority.level), float(claim.due_ms))


def deadline_of(claim: Claim, clock: StageClock) -> float | None:
    """Return the monotonic instant of a claim's deadline; None when there is none."""
    if claim.remaining_ms is None:
        return None
    return clock.received + claim.remaining_ms / 1000
