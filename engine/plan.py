"""StepPlan: what one step computes, as plain data; and what came of it.

Written by the scheduler, read by the runner. Must not know torch or policy.
"""

from array import array
from dataclasses import dataclass, replace

from engine.sequence import FinishReason, Pooling, Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """`num_tokens` consecutive known tokens of one sequence, from position `start`."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Tell whether the chunk ends at the last known token."""
        return self.start + self.num_tokens == self.sequence.num_known

    @property
    def samples(self) -> bool:
        """Tell whether a next token is sampled."""
        return self.is_last and self.sequence.pooling is None

    @property
    def num_pooled(self) -> int:
        """Count the tokens, the chunk's last ones, whose hidden states go into a vector."""
        match self.sequence.pooling:
            case None:
                return 0
            case Pooling.MEAN:
                return self.num_tokens
            case Pooling.LAST:
                return int(self.is_last)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The chunks of one step, the most urgent first."""

    chunks: tuple[Chunk, ...]
    preempted_ids: tuple[str, ...] = ()
    num_cached_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Count the tokens the step computes."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    def smaller(self) -> "StepPlan | None":
        """Return a part of the same step: half of its largest chunk, and all others.

        When all are single tokens, the first half of them; None when there is one.
        """
        largest = max(self.chunks, key=lambda chunk: chunk.num_tokens)
        if largest.num_tokens > 1:
            half = replace(largest, num_tokens=largest.num_tokens // 2)
            chunks = tuple(half if chunk is largest else chunk for chunk in self.chunks)
            return replace(self, chunks=chunks)
        if len(self.chunks) > 1:
            return replace(self, chunks=self.chunks[: len(self.chunks) // 2])
        return None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities in the model's own distribution.

    That is before temperature, limits, penalties and bias. top lists (token id, log probability),
    the likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the sampler chose for one sequence; logprobs only where they were asked for."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One token handed out.

    A token that only ends its sequence (a stop token) is not handed out.
    """

    sequence_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A sequence that ended by itself.

    token_ids is the answer: what was handed out. num_output_tokens also counts the stop token that
    ended it. num_cached_tokens says how many prompt tokens came from the prefix cache. vector has
    float32 numbers, of length one together; a sequence that was not pooled has none.
    """

    sequence_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    vector: "array[float] | None" = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step did.

    num_decode_tokens counts the rows that sampled, num_prompt_tokens all others.
    """

    tokens: tuple[TokenOutput, ...]
    finished: tuple[Completion, ...]
    preempted_ids: tuple[str, ...]
    batch_size: int
    num_prompt_tokens: int
    num_decode_tokens: int
    num_cached_tokens: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Where the time of all steps so far went, by kind of operation."""

    linears: float
    attention: float
    rows: float
    head: float


@dataclass(frozen=True, slots=True)
class GraphCost:
    """For which numbers of rows steps were recorded, and the seconds it took."""

    row_counts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Room in the engine after its last change; free_blocks includes cached blocks nobody holds."""

    free_slots: int
    free_blocks: int
    total_blocks: int
    running: int
    waiting: int
