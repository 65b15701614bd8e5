"""Sequence: one request inside the engine, and what it asks for.

Owns how far a sequence has come: which tokens are known and how many of them are computed. Must not
know torch, the tokenizer, or who schedules it. A sequence has no phases: whenever fewer tokens are
computed than known, it wants a chunk; when the chunk reaches the last known token, one more token
is sampled.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Protocol, TypeAlias

from engine.blocks import BlockTable
from engine.errors import SamplingError

Rank: TypeAlias = tuple[float, float]


class FinishReason(StrEnum):
    """Why a sequence ended by itself; an aborted sequence has no reason."""

    STOP = "stop"
    LENGTH = "length"
    POOLED = "pooled"


class Pooling(StrEnum):
    """How the hidden states of a prompt become one vector."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen and when to end. A sequence that is pooled has max_tokens 0.

    temperature 0 is greedy. Off are: top_k 0, top_p 1, min_p 0, repetition_penalty 1, the other
    penalties 0. num_logprobs asks for log probabilities of each token and of so many others.
    """

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    num_logprobs: int | None = None
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value <= highest:
                raise SamplingError(name, value, f"{lowest:g} to {highest:g}")
        for token_id, bias in self.logit_bias.items():
            if not -_LARGEST_BIAS <= bias <= _LARGEST_BIAS:
                raise SamplingError(f"logit_bias[{token_id}]", bias, "-100 to 100")

    @property
    def is_plain(self) -> bool:
        """Tell whether the likeliest token by the model's own scores is all that is wanted."""
        return (
            self.temperature == 0
            and self.repetition_penalty == 1.0
            and not self.presence_penalty
            and not self.frequency_penalty
            and not self.logit_bias
            and self.num_logprobs is None
        )


_LARGEST_BIAS = 100.0
_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (0, inf),
    "temperature": (0.0, 100.0),
    "top_k": (0, inf),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "num_logprobs": (0, 100),
}


class TokenConstraint(Protocol):
    """What an answer must keep to."""

    def allowed_after(self, answer_ids: list[int]) -> bytes:
        """Return a bit for each token, the lowest first: 1 where the token may come next."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. `rank` orders sequences, the lowest first: (priority class, due time).

    With `pooling` it samples nothing, and ends with a vector once its prompt is computed.
    """

    id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    rank: Rank = (0.0, 0.0)
    constraint: TokenConstraint | None = None
    pooling: Pooling | None = None
    known_ids: list[int] = field(init=False)
    num_computed: int = field(init=False, default=0)
    num_cached: int = field(init=False, default=0)
    num_preemptions: int = field(init=False, default=0)
    random_seed: int | None = field(init=False, default=None)
    table: BlockTable = field(init=False, default_factory=BlockTable)

    def __post_init__(self) -> None:
        max_tokens = self.sampling.max_tokens
        if self.pooling is None and max_tokens == 0:
            raise SamplingError("max_tokens", max_tokens, "1 or more")
        assert self.pooling is None or max_tokens == 0, "what is pooled samples nothing"
        self.known_ids = list(self.prompt_ids)

    @property
    def may_skip_cached(self) -> bool:
        """Tell whether cached blocks stand for computing: a mean needs every hidden state."""
        return self.pooling is not Pooling.MEAN

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
