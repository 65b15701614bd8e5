"""Sequence: one request inside the engine, and what it asks for.

Owns how far a sequence has come: which tokens are known and how many of them are computed. Must not
know torch, the tokenizer, or who schedules it. A sequence has no phases: whenever fewer tokens are
computed than known, it wants a chunk; when the chunk reaches the last known token, one more token
is sampled.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from engine.blocks import BlockTable
from engine.errors import SamplingError

Rank: TypeAlias = tuple[float, float]


class FinishReason(StrEnum):
    """Why a sequence ended by itself; an aborted sequence has no reason."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when to end.

    Temperature 0 is greedy; top_k 0 and top_p 1 are off.
    """

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise SamplingError("max_tokens", self.max_tokens, "1 or more")
        if not 0.0 <= self.temperature <= 100.0:
            raise SamplingError("temperature", self.temperature, "0 to 100")
        if self.top_k < 0:
            raise SamplingError("top_k", self.top_k, "0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise SamplingError("top_p", self.top_p, "above 0, at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise SamplingError("min_p", self.min_p, "0 to 1")


class TokenConstraint(Protocol):
    """What an answer must keep to."""

    def allowed_after(self, answer_ids: list[int]) -> bytes:
        """Return a bit for each token, the lowest first: 1 where the token may come next."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. `rank` orders sequences, the lowest first: (priority class, due time)."""

    id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    rank: Rank = (0.0, 0.0)
    constraint: TokenConstraint | None = None
    known_ids: list[int] = field(init=False)
    num_computed: int = field(init=False, default=0)
    num_cached: int = field(init=False, default=0)
    num_preemptions: int = field(init=False, default=0)
    random_seed: int | None = field(init=False, default=None)
    table: BlockTable = field(init=False, default_factory=BlockTable)

    def __post_init__(self) -> None:
        self.known_ids = list(self.prompt_ids)

    @property
    def num_known(self) -> int:
        """Count prompt and sampled tokens."""
        return len(self.known_ids)

    @property
    def num_pending(self) -> int:
        """Count the known tokens whose keys and values are not computed yet."""
        return len(self.known_ids) - self.num_computed

    @property
    def num_output(self) -> int:
        """Count the sampled tokens."""
        return len(self.known_ids) - len(self.prompt_ids)

    @property
    def answer_ids(self) -> list[int]:
        """Return the sampled tokens."""
        return self.known_ids[len(self.prompt_ids) :]

    @property
    def max_known(self) -> int:
        """Count the tokens the sequence can ever have."""
        return len(self.prompt_ids) + self.sampling.max_tokens
