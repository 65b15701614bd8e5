"""An embedding job: through engine and delivery to a vector in its result, and out again."""

import struct
from array import array
from base64 import b64decode
from time import monotonic

import pytest

from engine.plan import Completion
from engine.sequence import FinishReason, Pooling
from ops.settings import Settings
from queueing.errors import FailureCode
from queueing.job import JobKind, JobState
from queueing.store import connect
from queueing.wire import EmbedRequest, UnknownVersion, decode_request, encode_request
from tests.support.fake_engine import HUNGRY, byte_tokenizer, expected_vector
from tests.support.jobs import MODEL, a_job, claim_one, enqueue
from tests.support.one_thread_worker import OneThreadWorker
from workers.embedding import encode_vector, prepare_embedding

TOKENIZER = byte_tokenizer()


class Bench(OneThreadWorker):
    """A worker that is given embedding jobs."""

    def start(self, deadline_s=None, **asked):
        """Claim an embedding job and let it join."""
        request = encode_request(EmbedRequest(MODEL, **({"prompt": "some words"} | asked)))
        enqueue(self.jobs, a_job(request=request, kind=JobKind.EMBED, deadline_s=deadline_s))
        running = prepare_embedding(claim_one(self.jobs), TOKENIZER, Pooling.MEAN)
        self.join(running)
        return running


@pytest.fixture
def bench(redis_url):
    with connect(redis_url) as client:
        yield Bench(client, Settings(slots=4, step_tokens=16))


def test_the_vector_is_in_the_result_as_float32_in_base64(bench):
    running = bench.start(prompt="some words")

    bench.turn(2)

    result = bench.record(running).result
    vector = struct.unpack("<8f", b64decode(result.vector))
    assert array("f", vector) == expected_vector(TOKENIZER.encode("some words"))
    assert (result.state, result.choices, result.model) == (JobState.COMPLETED, (), MODEL)


def test_its_tokens_are_counted_as_read_and_none_as_made(bench):
    running = bench.start(prompt_ids=(1, 2, 3))

    bench.turn(2)

    usage = bench.record(running).result.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 0, 3)


def test_its_stages_end_with_the_prefill(bench):
    running = bench.start()

    bench.turn(2)

    stages = bench.record(running).stages
    assert {"queue_ms", "tokenise_ms", "admit_ms", "prefill_ms"} <= stages.keys()
    assert "decode_ms" not in stages


def test_a_job_whose_deadline_passes_in_the_engine_expires_and_frees_its_blocks(bench):
    running = bench.start(prompt="x" * 3_000, deadline_s=60)
    running.deadline = monotonic()

    bench.turn(2)

    record = bench.record(running)
    assert record.state is JobState.EXPIRED
    assert record.result.error.code is FailureCode.DEADLINE_EXCEEDED
    assert bench.num_held_blocks == 0


def test_a_lost_job_leaves_the_engine(bench):
    running = bench.start(prompt="x" * 3_000)
    bench.turn()
    assert bench.num_held_blocks > 0

    bench.delivery.lose(running.tag)
    bench.turn(2)

    assert bench.num_held_blocks == 0
    assert bench.record(running).state is JobState.RUNNING


def test_an_input_that_the_engine_refuses_fails_its_job(bench):
    running = bench.start(prompt="x" * 5_000)

    bench.turn(2)

    error = bench.record(running).result.error
    assert error.code is FailureCode.CONTEXT_LENGTH_EXCEEDED


def test_an_input_too_large_for_the_devices_memory_is_read_in_smaller_chunks(bench):
    prompt = HUNGRY + "x" * 100
    running = bench.start(prompt=prompt)

    while bench.record(running).state is JobState.RUNNING:
        bench.turn()

    vector = struct.unpack("<8f", b64decode(bench.record(running).result.vector))
    assert array("f", vector) == expected_vector(TOKENIZER.encode(prompt))


def test_a_vector_that_is_not_of_numbers_fails_its_job(bench):
    running = bench.start()

    vector = array("f", [0.5, float("nan")])
    running.end(Completion(running.tag, (), FinishReason.POOLED, 10, 0, 0, 0, vector))

    result = running.result()
    assert (result.state, result.vector) == (JobState.FAILED, None)
    assert result.error.code is FailureCode.ENGINE_ERROR


def test_embeddings_are_counted_apart_from_generations(bench):
    bench.start()

    bench.turn(2)

    def told(name, **labels):
        return bench.registry.get_sample_value(name, {"model": MODEL, **labels}) or 0

    assert told("promptmill_embeddings_finished_total", finish_reason="pooled") == 1
    assert told("promptmill_request_prompt_tokens_sum") == 10
    assert told("promptmill_request_generation_tokens_count") == 0
    assert told("promptmill_generations_finished_total", finish_reason="pooled") == 0


def test_a_worker_that_knows_no_kinds_hands_an_embedding_back():
    request = encode_request(EmbedRequest(MODEL, prompt="x"))

    with pytest.raises(UnknownVersion):
        decode_request(request)


def test_vectors_are_written_with_the_lowest_byte_first():
    assert b64decode(encode_vector(array("f", [1.0, -2.0]))) == struct.pack("<2f", 1.0, -2.0)
