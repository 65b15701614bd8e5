"""Running jobs told to those who follow, in one call a turn; and what a lost store does to it."""

import pytest

from engine.grammar import Grammars
from engine.plan import TokenOutput
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.token_stream import Piece, TokenStreams
from queueing.wire import GenerateRequest, encode_request
from tests.support.fake_engine import byte_tokenizer
from tests.support.jobs import MODEL, a_job, claim_one, enqueue
from workers.running import prepare
from workers.stream_writer import StreamWriter

TOKENIZER = byte_tokenizer()


@pytest.fixture
def client(redis_url):
    with connect(redis_url, timeout_s=0.2) as client:
        yield client


@pytest.fixture
def writer(client):
    return StreamWriter(TokenStreams(client))


@pytest.fixture
def start(client):
    """Return a way to run a job as a worker does that has claimed it."""
    queue = JobQueue(client)

    def begin(**asked):
        request = GenerateRequest(MODEL, 50, prompt="p", **{"stream": True, **asked})
        enqueue(queue, a_job(request=encode_request(request)))
        return prepare(claim_one(queue), TOKENIZER, Grammars(TOKENIZER))

    return begin


def say(writer, job, text, answer=0):
    sequence_id = job.sequences[answer].id
    for token_id in TOKENIZER.encode(text):
        job.take(TokenOutput(sequence_id, token_id))
    writer.note(job)


def told(client, job):
    return TokenStreams(client).read(job.claim.lease.job_id).pieces


def test_what_came_in_a_turn_is_one_piece(client, writer, start):
    job = start()
    say(writer, job, "ab")
    say(writer, job, "c")

    writer.flush()
    say(writer, job, "d")
    writer.flush()

    assert told(client, job) == (Piece(0, 0, "abc"), Piece(0, 3, "d"))


def test_all_jobs_of_a_turn_are_told_in_one_call(client, writer, start):
    jobs = [start(), start(), start()]
    say(writer, jobs[0], "so that the script is known")
    writer.flush()
    for job in jobs:
        say(writer, job, "x")
    client.config_resetstat()

    writer.flush()

    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert all(told(client, job) for job in jobs)


def test_a_job_that_nobody_follows_costs_no_call(client, writer, start):
    job = start(stream=False)
    say(writer, job, "ab")
    client.config_resetstat()

    writer.flush()

    assert "cmdstat_evalsha" not in client.info("commandstats")


def test_each_text_of_a_job_is_told_under_its_number(client, writer, start):
    job = start(n=2)
    say(writer, job, "left", answer=0)
    say(writer, job, "right", answer=1)

    writer.flush()

    assert told(client, job) == (Piece(0, 0, "left"), Piece(1, 0, "right"))


def test_a_job_that_ended_is_told_no_more(client, writer, start):
    job = start()
    say(writer, job, "ab")

    writer.forget(job.tag)
    writer.flush()

    assert told(client, job) == ()


def test_while_the_store_is_away_text_is_kept_and_told_later(client, start, redis_server):
    streams = TokenStreams(client)
    job = start()
    redis_server.kill9()
    away = StreamWriter(streams)
    say(away, job, "ab")
    away.flush()
    redis_server.start()
    back = StreamWriter(streams)

    say(back, job, "c")
    back.flush()

    assert told(client, job) == (Piece(0, 0, "abc"),)
