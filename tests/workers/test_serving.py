"""The loop that steps the engine, one turn at a time and in this thread."""

import queue
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar import Grammars
from ops.settings import Settings
from queueing.job import Claim, Lease, Priority
from tests.support.fake_engine import byte_tokenizer, expected_text, fake_engine
from tests.support.jobs import QUEUE
from tests.support.ledger import a_prompt_job
from tests.support.load import amount
from workers.running import prepare
from workers.serving import Event, Late, Refused, ServingLoop, Stepped

SLOTS = 4


class Bench:
    """A serving loop on the fake model, and what came out of it."""

    def __init__(self, coalesce_s=0.0, step_s=0.0):
        self.engine = fake_engine(Settings(slots=SLOTS, kv_blocks=64), step_s)
        self.tokenizer = byte_tokenizer()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.loop = ServingLoop(self.engine, self.events, coalesce_s=coalesce_s, idle_wait_s=0.0)

    def submit(self, prompt="prompt", max_tokens=3, priority=Priority.STANDARD, deadline_s=None):
        job = a_prompt_job(prompt, max_tokens)
        remaining_ms = None if deadline_s is None else round(deadline_s * 1000)
        claim = Claim(
            Lease(job.id, QUEUE, 1), job.request, priority, "default", 0, 0, 0, remaining_ms, 0, 1
        )
        running = prepare(claim, self.tokenizer, Grammars(self.tokenizer))
        self.loop.submit(running)
        return running

    def turns(self, number=1):
        for _ in range(number):
            self.loop.turn()
        return self.seen()

    def seen(self):
        events = []
        while not self.events.empty():
            events.append(self.events.get())
        return events

    def free_blocks(self):
        return self.engine.capacity().free_blocks


@pytest.fixture
def bench():
    return Bench()


def finished_in(events):
    return [
        completion.sequence_id
        for event in events
        if isinstance(event, Stepped)
        for completion in event.output.finished
    ]


def test_a_submitted_job_is_stepped_until_it_is_done(bench):
    job = bench.submit("hello", max_tokens=3)

    events = bench.turns(3)

    tokens = [token.token_id for event in events for token in event.output.tokens]
    assert bench.tokenizer.decode(tokens) == expected_text("hello", 3)
    assert finished_in(events) == [job.tag]


def test_a_turn_without_work_counts_too(bench):
    bench.turns(2)

    assert bench.loop.num_turns == 2


def test_jobs_join_and_leave_after_every_token(bench):
    long = bench.submit(max_tokens=6)
    bench.turns(2)
    short = bench.submit(max_tokens=1)

    events = bench.turns(1)

    assert finished_in(events) == [short.tag]
    assert finished_in(bench.turns(3)) == [long.tag]


def test_an_aborted_job_gives_its_blocks_back_before_the_next_step(bench):
    job = bench.submit(max_tokens=50)
    bench.turns(3)

    bench.loop.abort(job.tag)

    assert bench.turns(1) == []
    assert bench.free_blocks() == 64


def test_aborting_a_job_that_has_ended_does_nothing(bench):
    job = bench.submit(max_tokens=1)
    bench.turns(1)

    bench.loop.abort(job.tag)

    assert bench.turns(1) == []


def test_a_job_can_be_aborted_before_it_was_ever_stepped(bench):
    job = bench.submit()

    bench.loop.abort(job.tag)

    assert bench.turns(1) == []
    assert not bench.engine.has_work


@pytest.mark.fault("F23")
def test_a_job_past_its_deadline_gets_no_step(bench):
    job = bench.submit(deadline_s=0.0)

    assert bench.turns(1) == [Late(job.tag)]
    assert bench.free_blocks() == 64


@pytest.mark.fault("F23")
def test_a_deadline_in_the_middle_ends_the_job_within_one_step():
    bench = Bench(step_s=0.01)
    job = bench.submit(max_tokens=50, deadline_s=0.03)

    *steps, last = bench.turns(20)

    assert last == Late(job.tag)
    assert len(steps) <= 4
    assert bench.free_blocks() == 64


@pytest.mark.fault("F23")
@settings(max_examples=amount(quick=15, soak=300), deadline=None)
@given(step_ms=st.integers(1, 5), deadline_ms=st.integers(0, 25))
def test_at_any_speed_at_most_one_step_goes_to_a_job_past_its_deadline(step_ms, deadline_ms):
    bench = Bench(step_s=step_ms / 1000)
    job = bench.submit(max_tokens=50, deadline_s=deadline_ms / 1000)

    *steps, last = bench.turns(deadline_ms // step_ms + 3)

    assert last == Late(job.tag)
    assert len(steps) <= deadline_ms / step_ms + 1
    assert bench.free_blocks() == 64


def test_a_job_the_engine_can_never_run_is_refused(bench):
    job = bench.submit(max_tokens=100_000)

    (refusal,) = bench.turns(1)

    match refusal:
        case Refused(tag):
            assert tag == job.tag
        case _:
            pytest.fail(f"{refusal} is no refusal")


def test_an_urgent_job_gets_a_slot_of_a_full_engine_at_the_next_step(bench):
    for _ in range(SLOTS):
        bench.submit(max_tokens=20, priority=Priority.BULK)
    bench.turns(2)
    urgent = bench.submit("urgent", max_tokens=1, priority=Priority.REALTIME)

    (stepped,) = bench.turns(1)

    assert finished_in([stepped]) == [urgent.tag]
    assert len(stepped.output.preempted_ids) == 1


def test_a_job_that_made_room_goes_on_with_the_same_text(bench):
    prompts = {bench.submit(f"bulk {n}", 12, Priority.BULK).tag: f"bulk {n}" for n in range(SLOTS)}
    bench.turns(4)
    bench.submit("urgent", max_tokens=3, priority=Priority.REALTIME)

    completions = [
        completion
        for event in bench.turns(30)
        for completion in event.output.finished
        if completion.sequence_id in prompts
    ]

    texts = {done.sequence_id: bench.tokenizer.decode(done.token_ids) for done in completions}
    assert texts == {tag: expected_text(prompt, 12) for tag, prompt in prompts.items()}
    assert sum(done.num_preemptions for done in completions) == 1


def test_an_idle_engine_with_most_slots_taken_starts_at_once():
    bench = Bench(coalesce_s=60.0)
    for _ in range(3):
        bench.submit(max_tokens=1)

    assert len(finished_in(bench.turns(1))) == 3


def test_an_idle_engine_with_few_jobs_waits_a_little_for_company():
    bench = Bench(coalesce_s=0.02)
    bench.submit(max_tokens=1)
    begun = time.monotonic()

    bench.turns(1)

    assert time.monotonic() - begun >= 0.02


def test_a_working_engine_waits_for_nobody():
    bench = Bench(coalesce_s=60.0)
    for _ in range(3):
        bench.submit(max_tokens=5)
    bench.turns(1)

    bench.submit(max_tokens=1)

    assert len(finished_in(bench.turns(1))) == 1
