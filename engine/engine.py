"""Engine: sequences in, tokens and vectors out, one step at a time.

Owns the order of one step and what it reports. All methods belong to the one thread that steps,
except `capacity`, which any thread may call. Must not know text, queues or why a sequence exists.
Must not import torch either: what is computed, and on which device, comes in as a runner, a sampler
and a pooler.
"""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from engine.errors import (
    CacheLimitError,
    ContextLimitError,
    DeviceMemoryError,
    DuplicateSequenceError,
    EmptyPromptError,
    SamplingError,
    TokenIdError,
)
from engine.plan import Capacity, Choice, GraphCost, StepOutput, StepPlan, StepSeconds, TokenOutput
from engine.scheduler import Scheduler
from engine.sequence import Sequence

if TYPE_CHECKING:
    from engine.memory import MemoryPlan  # it reads torch

Hidden = TypeVar("Hidden")
Hidden_co = TypeVar("Hidden_co", covariant=True)
Hidden_contra = TypeVar("Hidden_contra", contravariant=True)


class Runner(Protocol[Hidden_co]):
    """Computes a plan; returns hidden states.

    First the last one of each chunk that samples, then all that are pooled, in the plan's order.
    """

    def run(self, plan: StepPlan) -> Hidden_co: ...


class TokenSampler(Protocol[Hidden_contra]):
    """Chooses the next token of each sequence from its hidden state, the first of all."""

    def sample(self, hidden: Hidden_contra, sequences: list[Sequence]) -> list[Choice]: ...


class VectorPooler(Protocol[Hidden_contra]):
    """Makes vectors of the hidden states of pooled sequences, the last of all, over many steps."""

    def pool(self, hidden: Hidden_contra, plan: StepPlan) -> "dict[str, array[float]]":
        """Take a step's hidden states; return the vectors that are whole, by sequence id."""
        ...

    def forget(self, sequence_id: str) -> None:
        """Drop what was gathered for a sequence, if anything was."""
        ...


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What no sequence may exceed, and how much there is in all."""

    vocab_size: int
    max_context: int
    max_sequences: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What runs here, for logs and metrics.

    weights tells how linear layers are rounded, or the type of all of them.
    step_seconds tells where the time of all steps went; None where the kernels do not keep count.
    graphs tells what recording steps took; None where none are.
    """

    kernels: str = "none"
    dtype: str = "none"
    weights: str = "none"
    kv_dtype: str = "none"
    memory: "MemoryPlan | None" = None
    step_seconds: Callable[[], StepSeconds] | None = None
    graphs: GraphCost | None = None


class Engine(Generic[Hidden]):
    """One model, one cache, one continuously changing batch."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Hidden],
        sampler: TokenSampler[Hidden],
        pooler: VectorPooler[Hidden],
        limits: EngineLimits,
        facts: EngineFacts = EngineFacts(),
    ) -> None:
        self.limits = limits
        self.facts = facts
        self._scheduler = scheduler
        self._runner = runner
        self._sampler = sampler
        self._pooler = pooler
        self._capacity = self._measure_capacity()

    @property
    def has_work(self) -> bool:
        """Tell whether a step would do anything."""
        return self._scheduler.num_running + self._scheduler.num_waiting > 0

    def capacity(self) -> Capacity:
        """Return the room left after the last change. Any thread may call this."""
        return self._capacity

    def add(self, sequence: Sequence) -> None:
        """Let a sequence join at the next step.

        Raise SequenceRefusedError if it could never be run.
        """
        self._check(sequence)
        self._scheduler.add(sequence)
        self._capacity = self._measure_capacity()

    def abort(self, sequence_id: str) -> bool:
        """Drop a sequence and free its blocks at once; False when it is unknown or has ended."""
        was_here = self._scheduler.abort(sequence_id)
        self._pooler.forget(sequence_id)
        self._capacity = self._measure_capacity()
        return was_here

    def step(self) -> StepOutput:
        """Compute one step.

        If this raises, no sequence has moved: the same step can be tried again.
        """
        started = time.perf_counter()
        plan = self._scheduler.plan()
        sequences: list[Sequence] = []
        choices: list[Choice] = []
        vectors: dict[str, array[float]] = {}
        if plan.chunks:
            plan, hidden = self._run(plan)
            sequences = [chunk.sequence for chunk in plan.chunks if chunk.samples]
            choices = self._sampler.sample(hidden, sequences)
            vectors = self._pooler.pool(hidden, plan)
        finished = self._scheduler.commit(plan, [choice.token_id for choice in choices])
        self._capacity = self._measure_capacity()
        return StepOutput(
            tokens=self._handed_out(sequences, choices),
            finished=tuple(
                replace(completion, vector=vectors.get(completion.sequence_id))
                for completion in finished
            ),
            preempted_ids=plan.preempted_ids,
            batch_size=len(plan.chunks),
            num_prompt_tokens=plan.num_tokens - len(sequences),
            num_decode_tokens=len(sequences),
            num_cached_tokens=plan.num_cached_tokens,
            duration_s=time.perf_counter() - started,
        )

    def check_integrity(self) -> None:
        """Assert that every block is free or held by exactly the sequences that list it."""
        self._scheduler.check_integrity()

    def _check(self, sequence: Sequence) -> None:
        limits = self.limits
        if not sequence.prompt_ids:
            raise EmptyPromptError
        for index, token_id in enumerate(sequence.prompt_ids):
            if not 0 <= token_id < limits.vocab_size:
                raise TokenIdError(index, token_id, limits.vocab_size)
        for token_id in sequence.sampling.logit_bias:
            if not 0 <= token_id < limits.vocab_size:
                raise SamplingError("logit_bias", token_id, f"tokens 0 to {limits.vocab_size - 1}")
        if sequence.max_known > limits.max_context:
            num_prompt_tokens = len(sequence.prompt_ids)
            max_tokens = sequence.sampling.max_tokens
            raise ContextLimitError(num_prompt_tokens, max_tokens, limits.max_context)
        if self._scheduler.most_blocks(sequence.max_known) > limits.num_blocks:
            num_slots = limits.num_blocks * limits.block_size
            raise CacheLimitError(sequence.max_known, num_slots)
        if sequence.id in self._scheduler:
            raise DuplicateSequenceError(sequence.id)

    def _run(self, plan: StepPlan) -> tuple[StepPlan, Hidden]:
        """Compute a plan, or where the device has no memory for it a smaller one.

        What is left out is computed in a later step. A long prompt delays itself first of all.
        """
        while True:
            try:
                return plan, self._runner.run(plan)
            except DeviceMemoryError:
                smaller = plan.smaller()
                if smaller is None:
                    raise
                plan = smaller

    def _handed_out(
        self, sequences: list[Sequence], choices: list[Choice]
    ) -> tuple[TokenOutput, ...]:
        return tuple(
            TokenOutput(sequence.id, choice.token_id, choice.logprobs)
            for sequence, choice in zip(sequences, choices, strict=True)
            if not self._scheduler.is_stop(sequence, choice.token_id)
        )

    def _measure_capacity(self) -> Capacity:
        running = self._scheduler.num_running
        return Capacity(
            free_slots=self.limits.max_sequences - running,
            free_blocks=self._scheduler.num_free_blocks,
            total_blocks=self.limits.num_blocks,
            running=running,
            waiting=self._scheduler.num_waiting,
        )
