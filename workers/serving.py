"""ServingLoop.turn: admit, drop what is late, step, hand the tokens on. Read this file to
understand the project.

    main thread (Celery)            stepping thread            delivery thread
    claim, tokenise ──submit/abort──> turn ──tokens, ends──> text, finish, renew

Owns the engine, and nothing else touches it. Never waits for Redis: claims come in through a queue
of its own, results leave through another, so a store that hangs does not stop a step.
"""

import queue
import time
from dataclasses import dataclass
from typing import Protocol

from engine.errors import SequenceRefusedError
from engine.plan import Capacity, StepOutput
from engine.sequence import Sequence
from workers.engine_job import EngineJob, tag_of


class SteppingEngine(Protocol):
    """What of the engine a turn needs."""

    @property
    def has_work(self) -> bool: ...

    def add(self, sequence: Sequence) -> None: ...

    def abort(self, sequence_id: str) -> bool: ...

    def step(self) -> StepOutput: ...

    def capacity(self) -> Capacity: ...


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step was computed."""

    output: StepOutput


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine can never run this job."""

    tag: str
    reason: str


@dataclass(frozen=True, slots=True)
class Late:
    """The deadline passed; the sequence is gone from the engine."""

    tag: str


Event = Stepped | Refused | Late


class ServingLoop:
    """Turns one engine.

    `submit` and `abort` may be called from any thread, `turn` from one only.
    """

    def __init__(
        self,
        engine: SteppingEngine,
        events: "queue.SimpleQueue[Event]",
        *,
        coalesce_s: float = 0.010,
        idle_wait_s: float = 0.1,
    ) -> None:
        self._engine = engine
        self._events = events
        self._inbox: queue.SimpleQueue[EngineJob | str] = queue.SimpleQueue()
        self._with_deadline: dict[str, float] = {}
        self._coalesce_s = coalesce_s
        self._idle_wait_s = idle_wait_s
        self.num_turns = 0  # read by other threads: it stands still when the engine hangs

    def submit(self, job: EngineJob) -> None:
        """Let a job join the next step."""
        self._inbox.put(job)

    def abort(self, sequence_id: str) -> None:
        """Drop a sequence before the next step, wherever it is; nothing happens if it has ended."""
        self._inbox.put(sequence_id)

    def turn(self) -> None:
        """Do one round. An exception that leaves it is a fault of the engine or its device."""
        self._admit()
        self._drop_late()
        if self._engine.has_work:
            self._hand_on(self._engine.step())
        self.num_turns += 1

    def _admit(self) -> None:
        """Take what came in.

        An engine without work waits for it, and then a little longer for company.
        """
        if not self._engine.has_work:
            try:
                self._take(self._inbox.get(timeout=self._idle_wait_s))
            except queue.Empty:
                return
            self._coalesce()
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _coalesce(self) -> None:
        """Start at once with 70% of the slots taken, else after the coalescing wait."""
        until = time.monotonic() + self._coalesce_s
        capacity = self._engine.capacity()
        enough = 0.7 * (capacity.free_slots + capacity.running)
        while (wait_s := until - time.monotonic()) > 0:
            capacity = self._engine.capacity()
            if capacity.running + capacity.waiting >= enough:
                return
            try:
                self._take(self._inbox.get(timeout=wait_s))
            except queue.Empty:
                return

    def _take(self, item: EngineJob | str) -> None:
        if isinstance(item, str):
            self._with_deadline.pop(item, None)
            self._engine.abort(item)
            return
        for sequence in item.sequences:
            try:
                self._engine.add(sequence)
            except SequenceRefusedError as error:
                self._events.put(Refused(item.tag, str(error)))
                continue
            item.clock.admitted = time.monotonic()
            if item.deadline is not None:
                self._with_deadline[sequence.id] = item.deadline

    def _drop_late(self) -> None:
        now = time.monotonic()
        late_ids = [name for name, deadline in self._with_deadline.items() if deadline <= now]
        for sequence_id in late_ids:
            del self._with_deadline[sequence_id]
            if self._engine.abort(sequence_id):
                self._events.put(Late(tag_of(sequence_id)))

    def _hand_on(self, output: StepOutput) -> None:
        for completion in output.finished:
            self._with_deadline.pop(completion.sequence_id, None)
        self._events.put(Stepped(output))
