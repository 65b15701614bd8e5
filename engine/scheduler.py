"""Scheduler: which sequences run, and how many tokens each gets in the next step.

There is no prefill phase and no decode phase: every step moves "computed" towards "known" for every
running sequence, the most urgent first, within a token budget of which each running sequence is
kept at least one token. Waiting sequences join in order of rank, in their place among the running
ones; the first that does not fit holds back the rest, so a large one is not passed for ever. Beside
the prompt of a more urgent class, an eighth of a step is left for other prompts, lest they make
that step a long one.

When blocks run out, the least urgent running sequence gives all of its blocks back and waits again;
what it had computed mostly survives as cached prefix. A sequence only ever takes from less urgent
ones, so the most urgent always moves and there is no cycle. Owns the running and waiting lists and
every change to a Sequence. Must not know tensors.
"""

from bisect import insort
from collections.abc import Sequence as Many
from dataclasses import dataclass
from math import inf

from engine.admission import AdmissionEstimate
from engine.blocks import BlockPool
from engine.plan import Chunk, Completion, StepPlan
from engine.sequence import FinishReason, Sequence


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: sequences at once, tokens in all."""

    max_sequences: int
    max_step_tokens: int

    @property
    def max_tokens_beside_urgent(self) -> int:
        """Bound the prompt tokens of less urgent classes in a step with a more urgent prompt."""
        return self.max_step_tokens // 8


# A sequence joins one step later if it can then share so many more blocks.
_BLOCKS_WORTH_WAITING = 4


@dataclass(slots=True, order=True)
class _Entry:
    """A sequence's place in a list: by rank, then by arrival; never by the sequence itself."""

    rank: tuple[float, float]
    arrival: int
    sequence: Sequence


class Scheduler:
    """Plan a step, then commit what came of it; between the two nothing else may be called."""

    def __init__(
        self,
        pool: BlockPool,
        limits: StepLimits,
        estimate: AdmissionEstimate,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._estimate = estimate
        self._eos_token_ids = eos_token_ids
        self._running: list[_Entry] = []
        self._waiting: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}
        self._num_arrived = 0
        self._num_cached_tokens = 0

    @property
    def num_running(self) -> int:
        """Count the sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Count the sequences that hold nothing yet, or nothing any more."""
        return len(self._waiting)

    @property
    def num_free_blocks(self) -> int:
        """Count the blocks no sequence holds."""
        return self._pool.num_free

    def most_blocks(self, num_tokens: int) -> int:
        """Count the blocks that a sequence of so many tokens holds at most at once."""
        return self._pool.most_held(num_tokens, self._limits.max_step_tokens)

    def __contains__(self, sequence_id: str) -> bool:
        """Tell whether a sequence with this id is running or waiting."""
        return sequence_id in self._entries

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        entry = _Entry(sequence.rank, self._num_arrived, sequence)
        self._num_arrived += 1
        self._entries[sequence.id] = entry
        insort(self._waiting, entry)

    def abort(self, sequence_id: str) -> bool:
        """Forget a sequence and free its blocks; False when it is not here (any more)."""
        entry = self._entries.pop(sequence_id, None)
        if entry is None:
            return False
        self._pool.release(entry.sequence.table)
        (self._running if entry in self._running else self._waiting).remove(entry)
        return True

    def plan(self) -> StepPlan:
        """Decide the next step and take the blocks it needs."""
        self._num_cached_tokens = 0
        preempted_ids = self._yield_to_urgent()
        num_yielded = len(preempted_ids)
        chunks: list[Chunk] = []
        budget = self._limits.max_step_tokens
        prompt_class = inf
        may_join = True
        while True:
            num_left = len(self._running) - len(chunks)
            # When blocks ran out there is no room for more.
            may_join = may_join and budget > num_left and len(preempted_ids) == num_yielded
            if may_join and self._waits_before(len(chunks)):
                may_join = self._join(chunks)
                continue
            if num_left == 0:
                return StepPlan(tuple(chunks), tuple(preempted_ids), self._num_cached_tokens)
            entry = self._running[len(chunks)]
            if prompt_class < entry.rank[0]:
                budget = min(budget, num_left + self._limits.max_tokens_beside_urgent)
            chunk = self._next_chunk(entry.sequence, budget - num_left + 1)
            if self._make_room(len(chunks), chunk, preempted_ids):
                chunks.append(chunk)
                budget -= chunk.num_tokens
                if chunk.num_tokens > 1:
                    prompt_class = min(prompt_class, entry.rank[0])

    def commit(self, plan: StepPlan, sampled_ids: Many[int]) -> list[Completion]:
        """Record a computed step.

        Sampled_ids has one token for each chunk that samples, in order.
        """
        completions: list[Completion] = []
        sampled = iter(sampled_ids)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            samples, is_last = chunk.samples, chunk.is_last
            sequence.num_computed = chunk.start + chunk.num_tokens
            self._pool.publish(sequence.table, sequence.known_ids, sequence.num_computed)
            self._pool.release_unseen(sequence.table, sequence.num_computed)
            if samples:
                token_id = next(sampled)
                sequence.known_ids.append(token_id)
                reason = self._finish_reason(sequence, token_id)
                if reason is not None:
                    completions.append(self._finish(sequence, reason))
            elif is_last:
                completions.append(self._finish(sequence, FinishReason.POOLED))
        return completions

    def is_stop(self, sequence: Sequence, token_id: int) -> bool:
        """Tell whether this token only ends the sequence and belongs to no answer."""
        sampling = sequence.sampling
        if token_id in sampling.stop_token_ids:
            return True
        return not sampling.ignore_eos and token_id in self._eos_token_ids

    def check_integrity(self) -> None:
        """Assert that sequences are in one list each and blocks are conserved."""
        assert all(not entry.sequence.table.blocks for entry in self._waiting), (
            "waiting with blocks"
        )
        listed = [*self._running, *self._waiting]
        assert len(listed) == len(self._entries), "a sequence is in no list or in two"
        assert self._running == sorted(self._running), "running is out of order"
        assert self._waiting == sorted(self._waiting), "waiting is out of order"
        self._pool.check_integrity(entry.sequence.table for entry in listed)

    def _yield_to_urgent(self) -> list[str]:
        """Preempt for waiting sequences of more urgent classes, as far as that can make room.

        No more of them than a step has tokens for: what yields earlier than it must does nothing.
        """
        preempted_ids: list[str] = []
        coming: list[Sequence] = []
        num_tokens = 0
        for entry in self._waiting[: self._limits.max_sequences]:
            num_tokens += entry.sequence.num_pending
            is_urgent = self._running and entry.rank[0] < self._running[-1].rank[0]
            if not is_urgent or (coming and num_tokens > self._limits.max_step_tokens):
                break
            coming.append(entry.sequence)
            if not self._can_yield_to(coming, entry.rank[0]):
                break
            while not self._has_room(*coming):
                self._preempt_least_urgent(preempted_ids)
        return preempted_ids

    def _can_yield_to(self, coming: list[Sequence], urgency: float) -> bool:
        """Tell whether there is room for all that come once every less urgent sequence yields."""
        staying = [entry for entry in self._running if entry.rank[0] <= urgency]
        yielding = self._running[len(staying) :]
        if len(staying) + len(coming) > self._limits.max_sequences:
            return False
        gained = sum(len(entry.sequence.table.held) for entry in yielding)
        promised = sum(self._blocks_to_come(entry.sequence) for entry in staying)
        return promised + sum(map(self._blocks_to_take, coming)) <= self._pool.num_free + gained

    def _next_chunk(self, sequence: Sequence, budget: int) -> Chunk:
        """Skip what the cache holds, then take as many pending tokens as the budget allows."""
        pool = self._pool
        has_full_blocks = sequence.num_computed == len(sequence.table.blocks) * pool.block_size
        if has_full_blocks and sequence.may_skip_cached:
            found = pool.adopt_cached(sequence.table, sequence.known_ids)
            self._num_cached_tokens += found - sequence.num_computed
            if sequence.num_preemptions == 0:
                sequence.num_cached += found - sequence.num_computed
            sequence.num_computed = found
            pool.release_unseen(sequence.table, found)
        return Chunk(sequence, sequence.num_computed, min(sequence.num_pending, budget))

    def _make_room(self, index: int, chunk: Chunk, preempted_ids: list[str]) -> bool:
        """Grow a running sequence's table, at the cost of less urgent ones.

        False when it had to yield itself.
        """
        while not self._pool.grow(chunk.sequence.table, chunk.start + chunk.num_tokens):
            self._preempt_least_urgent(preempted_ids)
            if len(self._running) <= index:
                return False
        return True

    def _preempt_least_urgent(self, preempted_ids: list[str]) -> None:
        entry = self._running.pop()
        self._pool.release(entry.sequence.table)
        entry.sequence.num_computed = 0
        entry.sequence.num_preemptions += 1
        insort(self._waiting, entry)
        preempted_ids.append(entry.sequence.id)

    def _waits_before(self, index: int) -> bool:
        """Tell whether what waits comes before the running sequence at this index, or after all."""
        if not self._waiting:
            return False
        return index == len(self._running) or self._waiting[0] < self._running[index]

    def _join(self, chunks: list[Chunk]) -> bool:
        """Let the first waiting sequence run; False, for the whole step, when it has to wait."""
        entry = self._waiting[0]
        if not self._has_room(entry.sequence) or self._is_worth_waiting(entry.sequence, chunks):
            return False
        del self._waiting[0]
        insort(self._running, entry)
        return True

    def _is_worth_waiting(self, sequence: Sequence, chunks: list[Chunk]) -> bool:
        """Tell whether this very step computes much of the sequence's beginning for another one."""
        num_worth = _BLOCKS_WORTH_WAITING * self._pool.block_size
        ends = [
            _common_length(sequence, chunk) for chunk in chunks if chunk.num_tokens >= num_worth
        ]
        if not self._pool.shares_prefixes or not sequence.may_skip_cached or not ends:
            return False
        num_cached = self._pool.cached_prefix(sequence.known_ids).num_blocks
        return max(ends) // self._pool.block_size - num_cached >= _BLOCKS_WORTH_WAITING

    def _has_room(self, *coming: Sequence) -> bool:
        if len(self._running) + len(coming) > self._limits.max_sequences:
            return False
        promised = sum(self._blocks_to_come(entry.sequence) for entry in self._running)
        return promised + sum(map(self._blocks_to_take, coming)) <= self._pool.num_free

    def _blocks_to_take(self, sequence: Sequence) -> int:
        if not sequence.may_skip_cached or self._pool.forgets:
            return self._blocks_to_come(sequence)
        held = self._pool.cached_prefix(sequence.known_ids).num_held
        return self._blocks_to_come(sequence) - held

    def _blocks_to_come(self, sequence: Sequence) -> int:
        expected = self.most_blocks(self._estimate.expected_tokens(sequence))
        return expected - len(sequence.table.held)

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        if self.is_stop(sequence, token_id):
            return FinishReason.STOP
        return FinishReason.LENGTH if sequence.num_known == sequence.max_known else None

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Completion:
        entry = self._entries.pop(sequence.id)
        self._running.remove(entry)
        self._pool.release(sequence.table)
        if sequence.pooling is None:
            self._estimate.observe(sequence)
        answer = sequence.known_ids[len(sequence.prompt_ids) :]
        return Completion(
            sequence_id=sequence.id,
            token_ids=tuple(answer[:-1] if reason is FinishReason.STOP else answer),
            finish_reason=reason,
            num_prompt_tokens=len(sequence.prompt_ids),
            num_output_tokens=len(answer),
            num_cached_tokens=sequence.num_cached,
            num_preemptions=sequence.num_preemptions,
        )


def _common_length(sequence: Sequence, chunk: Chunk) -> int:
    """Measure the common beginning of a sequence and what another has computed after its chunk."""
    ours, theirs = sequence.known_ids, chunk.sequence.known_ids
    end = min(len(ours) - 1, chunk.start + chunk.num_tokens)
    if ours[:end] == theirs[:end]:
        return end
    return next(index for index in range(end) if ours[index] != theirs[index])
