"""POST /v1/embeddings: several jobs, one answer or one error; the test plays the worker."""

import json
import struct
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.app import create_api
from queueing.admission import RateLimits
from queueing.errors import FailureCode
from queueing.job import JobKind, JobResult, JobState, Outcome, Priority, Usage
from queueing.tenants import Tenant, TenantStore
from queueing.wire import decode_embed_request
from tests.api.test_jobs import QUEUE

PATH = "/v1/embeddings"
ASKED = {"model": "tiny", "input": ["one", "two", "three"]}


def vector_of(text):
    return struct.pack("<3f", len(text), 0.5, -1 / 3)


class Worker:
    """Claims embedding jobs and answers them."""

    def __init__(self, queue):
        self.queue = queue
        self.claims = {}

    def claim(self, count):
        while len(self.claims) < count:
            for claim in self.queue.claim(QUEUE, "worker", count):
                self.claims[decode_embed_request(claim.request).prompt] = claim
        return self

    def complete(self, *texts):
        for text in texts:
            vector = b64encode(vector_of(text)).decode()
            result = JobResult(
                JobState.COMPLETED, vector=vector, usage=Usage(len(text), 0), model="tiny"
            )
            self.queue.finish(Outcome(self.claims[text].lease, result))

    def fail(self, text, code):
        result = JobResult.failure(JobState.FAILED, code, "it broke")
        self.queue.finish(Outcome(self.claims[text].lease, result))

    def state(self, text):
        record = self.queue.get(self.claims[text].lease.job_id, "default")
        return record.state


@pytest.fixture
def worker(queue):
    return Worker(queue)


@pytest.fixture
def ask(client):
    """Return a way to ask in another thread."""
    with ThreadPoolExecutor(2) as executor:
        yield lambda headers=None, **body: executor.submit(
            client.post, PATH, json={**ASKED, **body}, headers=headers
        )


def test_inputs_are_answered_in_their_order_however_they_end(ask, worker):
    answer = ask()
    worker.claim(3)

    worker.complete("three", "one", "two")

    told = answer.result().json
    vectors = [struct.pack("<3f", *one["embedding"]) for one in told["data"]]
    assert vectors == [vector_of("one"), vector_of("two"), vector_of("three")]
    assert [one["index"] for one in told["data"]] == [0, 1, 2]
    assert told["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    assert told["model"] == "tiny"


def test_base64_is_given_when_asked_for(ask, worker):
    answer = ask(input="one", encoding_format="base64")

    worker.claim(1).complete("one")

    (told,) = answer.result().json["data"]
    assert b64decode(told["embedding"]) == vector_of("one")


def test_the_jobs_are_realtime_embeddings_with_a_deadline_that_tell_no_webhook(ask, worker):
    answer = ask()
    claims = worker.claim(3).claims.values()

    assert {claim.kind for claim in claims} == {JobKind.EMBED}
    assert {claim.priority for claim in claims} == {Priority.REALTIME}
    assert all(claim.remaining_ms > 200_000 for claim in claims)
    assert all(claim.lease.job_id.startswith("embd-") for claim in claims)
    worker.complete("one", "two", "three")
    assert answer.result().status_code == 200


def test_one_input_that_fails_fails_the_request_and_ends_the_others(ask, worker):
    answer = ask()
    worker.claim(3).complete("one")

    worker.fail("two", FailureCode.ENGINE_ERROR)

    refused = answer.result()
    assert (refused.status_code, refused.json["error"]["code"]) == (500, "engine_error")
    assert worker.state("three") is JobState.CANCELLED


def test_an_answer_that_takes_too_long_is_a_504_and_leaves_no_job(settings, queue):
    api = create_api(settings.model_copy(update={"answer_limit_s": 0.1}))
    headers = {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"}

    refused = api.app.test_client().post(PATH, json=ASKED, headers=headers)

    assert refused.status_code == 504
    assert json.loads(refused.data)["error"]["code"] == "deadline_exceeded"
    assert queue.claim(QUEUE, "worker", 9) == []
    api.close()


def test_a_request_of_many_inputs_waits_in_one_place(ask, worker):
    first, second = ask(), ask(input=["four", "five"])

    worker.claim(5).complete("one", "two", "three", "four", "five")

    assert [answer.result().status_code for answer in (first, second)] == [200, 200]


def test_a_queue_that_has_no_room_for_all_keeps_none(queue, settings):
    api = create_api(settings.model_copy(update={"max_queued_jobs": 2}))
    headers = {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"}

    refused = api.app.test_client().post(PATH, json=ASKED, headers=headers)

    assert refused.status_code == 503
    assert json.loads(refused.data)["error"]["code"] == "queue_full"
    assert queue.claim(QUEUE, "worker", 9) == []
    api.close()


def test_a_repeat_under_an_idempotency_key_gets_the_first_ones_vectors(ask, worker, queue):
    key = {"Idempotency-Key": "mine"}
    first = ask(headers=key)
    worker.claim(3).complete("one", "two", "three")
    first.result()

    again = ask(headers=key).result()

    assert again.json == first.result().json
    assert queue.claim(QUEUE, "worker", 9) == []


def test_another_body_under_the_same_key_is_a_conflict(client, ask, worker):
    key = {"Idempotency-Key": "mine"}
    first = ask(headers=key)
    worker.claim(3).complete("one", "two", "three")
    first.result()

    refused = client.post(PATH, json={**ASKED, "input": ["one", "else"]}, headers=key)

    assert (refused.status_code, refused.json["error"]["code"]) == (409, "idempotency_conflict")


def test_each_input_is_counted_as_a_job(ask, worker, client):
    answer = ask()
    worker.claim(3).complete("one", "two", "three")
    answer.result()

    labels = 'endpoint="embeddings",model="tiny",priority="realtime"'
    assert f"promptmill_jobs_submitted_total{{{labels}}} 3.0" in client.get("/metrics").text


def test_all_inputs_together_count_as_one_request_against_the_rates(api, ask, worker, client):
    tenants = TenantStore(api.client)
    tenants.put(Tenant("limited", limits=RateLimits(requests_per_min=2)))
    _, key = tenants.create_key("limited")
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"

    answer = ask()
    worker.claim(3).complete("one", "two", "three")

    assert answer.result().headers["RateLimit-Remaining"] == "2"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"dimensions": 8}, 400, "unsupported_parameter", "dimensions"),
        ({"input": []}, 400, "invalid_request", "input"),
        ({"model": "nobody"}, 404, "model_not_found", "model"),
        ({"input": "x" * 600}, 400, "context_length_exceeded", "input"),
    ],
)
def test_what_can_not_be_served_is_refused_before_a_job_is_made(
    client, queue, body, status, code, param
):
    refused = client.post(PATH, json={**ASKED, **body})

    error = refused.json["error"]
    assert (refused.status_code, error["code"], error["param"]) == (status, code, param)
    assert queue.claim(QUEUE, "worker", 9) == []


def test_a_keyed_request_that_found_no_room_can_be_repeated(settings, queue, worker):
    api = create_api(settings.model_copy(update={"max_queued_jobs": 2}))
    key = settings.api_key.get_secret_value()
    client = api.app.test_client()
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "mine"}
    refused = client.post(PATH, json=ASKED, headers=headers)
    worker.claim(2)

    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(client.post, PATH, json=ASKED, headers=headers)
        worker.claim(3).complete("one", "two", "three")

    assert refused.status_code == 503
    assert answer.result().status_code == 200
    assert queue.claim(QUEUE, "worker", 9) == []
    api.close()


def test_a_job_with_an_input_is_polled_for_its_vector(client, worker):
    submitted = client.post("/v1/jobs", json={"input": "one", "priority": "bulk"})
    claims = worker.claim(1).claims

    worker.complete("one")

    told = client.get(submitted.headers["Location"]).json
    assert (submitted.status_code, claims["one"].kind) == (202, JobKind.EMBED)
    assert struct.pack("<3f", *told["result"]["embedding"]) == vector_of("one")
    assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (3, 0)
    assert client.get("/v1/jobs?state=completed").json["data"] == [told]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "prompt": "b"}, "prompt"),
        ({"input": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ({"input": ""}, "input"),
        ({"input": ["a"]}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": "a", "max_tokens": 5}, "max_tokens"),
        ({"input": "a", "stop": ["b"]}, "stop"),
    ],
)
def test_a_job_with_an_input_takes_nothing_that_is_for_answers(client, body, param):
    refused = client.post("/v1/jobs", json=body)

    assert (refused.status_code, refused.json["error"]["param"]) == (400, param)
