"""Realtime jobs beside saturating bulk: how many steps each waits, counted and never timed."""

import queue
from itertools import count
from random import Random

import pytest

from engine.grammar import Grammars
from ops.settings import Settings
from queueing.job import Claim, Lease, Priority
from tests.support.fake_engine import byte_tokenizer, fake_engine
from tests.support.jobs import QUEUE
from tests.support.ledger import a_prompt_job
from workers.running import RunningJob, prepare
from workers.serving import Event, ServingLoop, Stepped

SLOTS = 8


class Bench:
    """An engine that always has more bulk than slots, and realtime jobs that come at random."""

    def __init__(self, chance):
        settings = Settings(slots=SLOTS, kv_blocks=256)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._engine = fake_engine(settings, step_s=0.0)
        self._loop = ServingLoop(self._engine, self._events, coalesce_s=0.0, idle_wait_s=0.0)
        self._tokenizer = byte_tokenizer()
        self._chance = chance
        self._number = count()
        self._waiting: dict[str, int] = {}
        self.waits_in_steps: list[int] = []

    def run(self, num_jobs: int) -> None:
        """Step until so many realtime jobs have their first token."""
        while len(self.waits_in_steps) < num_jobs:
            self._top_up()
            if len(self._waiting) < SLOTS // 8 and self._chance.random() < 0.3:
                self._waiting[self._submit(Priority.REALTIME, self._chance.randint(1, 3)).tag] = 0
            self._turn()

    def check(self) -> None:
        self._engine.check_integrity()

    def _top_up(self) -> None:
        capacity = self._engine.capacity()
        for _ in range(2 * SLOTS - capacity.running - capacity.waiting):
            self._submit(Priority.BULK, self._chance.randint(20, 60))

    def _submit(self, priority: Priority, max_tokens: int) -> RunningJob:
        number = next(self._number)
        request = a_prompt_job(f"{priority} {number}", max_tokens).request
        lease = Lease(f"job_{number}", QUEUE, 1)
        claim = Claim(lease, request, priority, "default", number, 0, 0, None, 0, 1)
        job = prepare(claim, self._tokenizer, Grammars(self._tokenizer))
        self._loop.submit(job)
        return job

    def _turn(self) -> None:
        self._loop.turn()
        event = self._events.get_nowait()
        assert isinstance(event, Stepped)
        for tag in self._waiting:
            self._waiting[tag] += 1
        for token in event.output.tokens:
            if token.sequence_id in self._waiting:
                self.waits_in_steps.append(self._waiting.pop(token.sequence_id))


@pytest.fixture
def bench(request):
    return Bench(Random(request.config.getoption("randomly_seed")))


def test_a_realtime_job_has_its_first_token_from_the_step_that_follows_its_arrival(bench):
    bench.run(50)

    assert set(bench.waits_in_steps) == {1}
    bench.check()


@pytest.mark.soak
def test_two_thousand_realtime_jobs_all_have_theirs_from_the_step_that_follows(bench):
    bench.run(2_000)

    assert set(bench.waits_in_steps) == {1}
    bench.check()
