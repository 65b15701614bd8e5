"""A job of several texts: through engine and delivery, and out of them again."""

from time import monotonic

import pytest

from engine.grammar import Grammars
from ops.settings import Settings
from queueing.job import JobState
from queueing.store import connect
from queueing.wire import GenerateRequest, encode_request
from tests.support.fake_engine import byte_tokenizer, expected_text
from tests.support.jobs import MODEL, a_job, claim_one, enqueue
from tests.support.one_thread_worker import OneThreadWorker
from workers.running import prepare

TOKENIZER = byte_tokenizer()


class Bench(OneThreadWorker):
    """A worker that is given jobs of three texts."""

    def start(self, **asked):
        """Claim a job of three texts and let it join."""
        deadline_s = asked.pop("deadline_s", None)
        request = GenerateRequest(MODEL, **{"max_tokens": 9, "prompt": "p", "n": 3, **asked})
        job = a_job(request=encode_request(request), deadline_s=deadline_s)
        enqueue(self.jobs, job)
        running = prepare(claim_one(self.jobs), TOKENIZER, Grammars(TOKENIZER))
        self.join(running)
        return running


@pytest.fixture
def bench(redis_url):
    with connect(redis_url) as client:
        yield Bench(client, Settings())


def test_every_text_is_in_the_result_under_its_number(bench):
    running = bench.start(seed=5, temperature=1.0)

    bench.turn(12)

    result = bench.record(running).result
    assert [(choice.index, choice.text) for choice in result.choices] == [
        (number, expected_text("p", 9, seed=5 + number)) for number in range(3)
    ]
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, 27)
    assert bench.num_held_blocks == 0


def test_a_job_ends_when_its_last_text_does(bench):
    texts = [expected_text("p", 40, seed=1 + number) for number in range(3)]
    stop = texts[0][3:6]
    running = bench.start(seed=1, temperature=1.0, max_tokens=40, stop=(stop,))

    bench.turn(8)
    state_before = bench.record(running).state
    bench.turn(40)

    result = bench.record(running).result
    assert state_before is JobState.RUNNING
    assert [choice.text for choice in result.choices] == [text.partition(stop)[0] for text in texts]
    assert result.choices[0].finish_reason == "stop"
    assert bench.num_held_blocks == 0


def test_a_job_that_is_lost_leaves_no_text_in_the_engine(bench):
    running = bench.start(max_tokens=100)
    bench.turn(3)

    bench.delivery.lose(running.tag)
    bench.turn(2)

    assert not bench.engine.has_work
    assert bench.num_held_blocks == 0
    assert [ended.state for ended in bench.ended] == [None]


def test_a_job_that_is_late_ends_once_with_all_its_texts(bench):
    running = bench.start(max_tokens=3_000, deadline_s=0.05)
    until_s = monotonic() + 5
    while bench.engine.has_work or monotonic() < running.deadline:
        bench.turn()
        assert monotonic() < until_s

    bench.turn(2)

    assert bench.record(running).state is JobState.EXPIRED
    assert [ended.state for ended in bench.ended] == [JobState.EXPIRED]
    assert bench.num_held_blocks == 0


def test_a_job_that_can_never_run_is_refused_once(bench):
    running = bench.start(max_tokens=100_000)

    bench.turn(2)

    assert bench.record(running).state is JobState.FAILED
    assert [ended.state for ended in bench.ended] == [JobState.FAILED]
