"""From steps to results in the queue, in this thread; and what a lost store does to it."""

import queue

import pytest
from prometheus_client import CollectorRegistry

from engine.grammar import Grammars
from engine.plan import Completion, StepOutput, TokenOutput
from engine.sequence import FinishReason
from ops.settings import Settings
from queueing.errors import FailureCode
from queueing.job import JobResult, JobState
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.token_stream import TokenStreams
from tests.support.fake_engine import byte_tokenizer, fake_engine
from tests.support.jobs import MODEL, TENANT, claim_one, enqueue, state_of
from tests.support.ledger import a_prompt_job
from tests.support.server import RedisServer, embedded_binary
from workers.delivery import Delivery, Ended
from workers.intake import Intake
from workers.observer import EngineObserver
from workers.running import prepare
from workers.serving import Event, Late, Refused, Stepped
from workers.stream_writer import StreamWriter


class Desk:
    """A delivery with all its neighbours in reach."""

    def __init__(self, client):
        self.jobs = jobs = JobQueue(client)
        self.intake = Intake(jobs, "w1", slots=4)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.aborted: list[str] = []
        self.ended: list[Ended] = []
        self.tokenizer = byte_tokenizer()
        engine = fake_engine(Settings(), step_s=0.0)
        observer = EngineObserver(CollectorRegistry(), MODEL, "w1", engine.capacity)
        self.delivery = Delivery(
            jobs,
            StreamWriter(TokenStreams(client)),
            self.events,
            observer,
            abort=self.aborted.append,
            on_finished=self.intake.forget,
        )
        self.delivery.on_ended(self.ended.extend)

    def start(self, **changes):
        """Claim a job and let the delivery expect its tokens."""
        job = a_prompt_job("prompt", 9, **changes)
        enqueue(self.jobs, job)
        claim = claim_one(self.jobs)
        self.intake.accept(claim)
        running = prepare(claim, self.tokenizer, Grammars(self.tokenizer))
        self.delivery.expect(running)
        return running

    def step(self, running, text="", *, finished=False):
        """Report a step that made these letters, each a token."""
        ids = tuple(self.tokenizer.encode(text))
        tokens = tuple(TokenOutput(running.tag, token_id) for token_id in ids)
        done = Completion(running.tag, ids, FinishReason.LENGTH, 6, len(ids), 2, 0)
        self.events.put(
            Stepped(StepOutput(tokens, (done,) if finished else (), (), 1, 6, len(ids), 0, 0.001))
        )
        self.delivery.turn(wait_s=0.0)


@pytest.fixture
def desk(store):
    return Desk(store)


def record(desk, running):
    return desk.jobs.get(running.claim.lease.job_id, TENANT)


def test_the_last_token_writes_the_result(desk):
    running = desk.start()
    desk.step(running, "ab")

    desk.step(running, "c", finished=True)

    result = record(desk, running).result
    assert result.choices[0].text == "abc"
    assert result.choices[0].finish_reason == "length"
    assert (result.usage.prompt_tokens, result.usage.cached_tokens) == (6, 2)


def test_a_written_result_is_held_no_more_and_reported_once(desk):
    running = desk.start()

    desk.step(running, "x", finished=True)
    desk.delivery.turn(wait_s=0.0)

    assert desk.intake.leases() == []
    assert desk.ended == [Ended(running.tag, JobState.COMPLETED, None)]


def test_a_refused_job_fails_with_the_reason(desk):
    running = desk.start()
    desk.events.put(Refused(running.tag, "too long"))

    desk.delivery.turn(wait_s=0.0)

    failed = record(desk, running)
    assert failed.state is JobState.FAILED
    assert failed.result.error.code is FailureCode.CONTEXT_LENGTH_EXCEEDED


@pytest.mark.fault("F23")
def test_a_late_job_expires_with_the_stage_it_was_in(desk, store):
    running = desk.start()
    desk.step(running, "ab")
    desk.events.put(Late(running.tag))

    desk.delivery.turn(wait_s=0.0)

    assert record(desk, running).state is JobState.EXPIRED
    assert store.hget(f"{{pm}}:job:{running.claim.lease.job_id}", "stage") == "decode"


def test_a_result_that_comes_too_late_is_not_written_over_a_cancel(desk):
    running = desk.start()
    desk.jobs.cancel(running.claim.lease.job_id, TENANT)

    desk.step(running, "x", finished=True)

    assert record(desk, running).state is JobState.CANCELLED
    assert desk.ended == [Ended(running.tag, None, None)]


def test_a_lost_job_is_dropped_from_the_engine(desk):
    running = desk.start()

    desk.delivery.lose(running.tag)
    desk.delivery.turn(wait_s=0.0)
    desk.step(running, "x", finished=True)

    assert desk.aborted == [running.tag]
    assert desk.ended == [Ended(running.tag, None, None)]
    assert record(desk, running).state is JobState.RUNNING


def test_a_job_refused_before_the_engine_is_ended_by_the_next_turn(desk):
    running = desk.start()
    failure = JobResult.failure(JobState.FAILED, FailureCode.INVALID_REQUEST, "no")

    desk.delivery.refuse(running.claim.lease, failure)
    desk.delivery.turn(wait_s=0.0)

    assert record(desk, running).result == failure


@pytest.mark.fault("F5")
def test_results_made_without_a_store_are_delivered_when_it_is_back(tmp_path):
    server = RedisServer(tmp_path / "redis", embedded_binary())
    server.start()
    with connect(server.url) as client:
        desk = Desk(client)
        running = desk.start()
        server.kill9()

        desk.step(running, "x", finished=True)
        server.start()
        while not desk.ended:
            desk.delivery.turn(wait_s=0.05)

        assert state_of(desk.jobs, running.claim.lease.job_id) is JobState.COMPLETED
    server.stop()
