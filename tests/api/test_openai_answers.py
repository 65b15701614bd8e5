"""Answers of jobs that end otherwise, at once and streamed; the test plays the worker."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.app import create_api
from queueing.endpoints import EndpointForm, EndpointStore, EventType
from queueing.errors import FailureCode
from queueing.job import WEBHOOK_QUEUE, Choice, JobResult, JobState, Lease, Outcome, Usage
from queueing.token_stream import Piece, TokenStreams
from tests.api.test_jobs import QUEUE

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


class Worker:
    """Claims one job and says what the test wants of it."""

    lease: Lease

    def __init__(self, queue, client):
        self.queue = queue
        self.streams = TokenStreams(client)

    def claim(self):
        while not (claims := self.queue.claim(QUEUE, "worker", 1)):
            pass
        self.lease = claims[0].lease
        return self

    def say(self, offset, text, index=0):
        self.streams.append([(self.lease, Piece(index, offset, text))])

    def complete(self, *texts, reason="stop"):
        choices = tuple(Choice(index, text, reason) for index, text in enumerate(texts))
        result = JobResult(JobState.COMPLETED, choices, usage=Usage(5, 2, 1), model="tiny")
        self.queue.finish(Outcome(self.lease, result))

    def fail(self, code):
        self.queue.finish(Outcome(self.lease, JobResult.failure(JobState.FAILED, code, "it broke")))


@pytest.fixture
def worker(queue, api):
    return Worker(queue, api.client)


@pytest.fixture
def post(client):
    """Return a way to post in another thread."""
    with ThreadPoolExecutor(2) as executor:
        yield lambda path, **body: executor.submit(client.post, path, json=body)


def events_of(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def text_of(events, index=0):
    choices = [choice for event in events for choice in event.get("choices", ())]
    return "".join(
        choice["delta"].get("content", "") for choice in choices if choice["index"] == index
    )


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FailureCode.ENGINE_ERROR, 500),
        (FailureCode.OUT_OF_MEMORY, 500),
        (FailureCode.CONTEXT_LENGTH_EXCEEDED, 400),
    ],
)
def test_a_job_that_failed_is_answered_with_the_status_of_its_failure(post, worker, code, status):
    answer = post("/v1/chat/completions", **CHAT)

    worker.claim().fail(code)

    refused = answer.result()
    assert (refused.status_code, refused.json["error"]["code"]) == (status, code)


def test_a_job_that_somebody_cancelled_is_a_conflict_that_is_not_repeated(post, worker, queue):
    answer = post("/v1/chat/completions", **CHAT)

    queue.cancel(worker.claim().lease.job_id, "default")

    refused = answer.result()
    assert (refused.status_code, refused.json["error"]["code"]) == (409, "cancelled")
    assert refused.headers["x-should-retry"] == "false"


def test_an_answer_that_takes_too_long_is_a_504(settings):
    api = create_api(settings.model_copy(update={"answer_limit_s": 0.1}))
    headers = {"Authorization": f"Bearer {settings.api_key.get_secret_value()}"}

    refused = api.app.test_client().post("/v1/chat/completions", json=CHAT, headers=headers)

    assert refused.status_code == 504
    assert json.loads(refused.data)["error"]["code"] == "deadline_exceeded"
    api.close()


def test_a_job_that_fails_while_it_is_streamed_ends_in_an_error_event(post, worker):
    answer = post("/v1/chat/completions", **CHAT, stream=True)
    worker.claim().say(0, "half")

    worker.fail(FailureCode.ENGINE_ERROR)

    *events, last = events_of(answer.result())
    assert text_of(events) == "half"
    assert last["error"]["code"] == "engine_error"
    assert "[DONE]" not in answer.result().text


def test_a_text_that_came_out_otherwise_the_second_time_ends_in_an_error_event(post, worker, queue):
    answer = post("/v1/chat/completions", **CHAT, stream=True)
    worker.claim().say(0, "the cat")
    queue.release(worker.lease)

    worker.claim().say(0, "the dog")

    *events, last = events_of(answer.result())
    assert text_of(events) == "the cat"
    assert last["error"]["code"] == "worker_lost"


def test_what_no_stream_told_comes_with_the_result(post, worker):
    answer = post("/v1/chat/completions", **CHAT, stream=True)
    worker.claim().say(0, "one ")
    worker.say(7, "three ")

    worker.complete("one two three four")

    events = events_of(answer.result())
    assert text_of(events) == "one two three four"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stream_that_nobody_can_come_back_to_is_forgotten(api, post, worker):
    answer = post("/v1/chat/completions", **CHAT, stream=True)
    worker.claim().say(0, "one ")

    worker.complete("one two")

    assert text_of(events_of(answer.result())) == "one two"
    answer.result().close()
    assert api.client.keys("*:stream") == []


def test_several_choices_come_side_by_side(post, worker):
    answer = post("/v1/chat/completions", **CHAT, stream=True, n=2)
    worker.claim().say(0, "left", index=0)
    worker.say(0, "right", index=1)

    worker.complete("left.", "right.")

    events = events_of(answer.result())
    assert (text_of(events, 0), text_of(events, 1)) == ("left.", "right.")


def test_a_response_that_fails_while_it_is_streamed_ends_as_failed(post, worker):
    answer = post("/v1/responses", model="tiny", input="hi", stream=True)

    worker.claim().fail(FailureCode.ENGINE_ERROR)

    last = events_of(answer.result())[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "it broke"}


def test_a_response_that_came_out_otherwise_ends_in_an_error_event(post, worker):
    answer = post("/v1/responses", model="tiny", input="hi", stream=True)
    worker.claim().say(0, "the cat")

    worker.complete("the dog")

    last = events_of(answer.result())[-1]
    assert (last["type"], last["code"]) == ("error", "worker_lost")


@pytest.mark.parametrize(("reason", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_a_response_is_complete_when_its_text_ended_by_itself(post, worker, reason, status):
    answer = post("/v1/responses", model="tiny", input="hi")

    worker.claim().complete("an answer", reason=reason)

    assert answer.result().json["status"] == status


def test_a_response_that_expired_or_died_is_told_as_failed(client, queue, worker):
    made = client.post("/v1/responses", json={"model": "tiny", "input": "x", "background": True})
    worker.claim()
    late = JobResult.failure(JobState.EXPIRED, FailureCode.DEADLINE_EXCEEDED, "too late")
    queue.finish(Outcome(worker.lease, late))

    told = client.get(f"/v1/responses/{made.json['id']}").json

    assert (told["status"], told["error"]["code"]) == ("failed", "server_error")


def test_a_response_whose_text_is_gone_is_gone(client, api, worker):
    made = client.post("/v1/responses", json={"model": "tiny", "input": "x", "background": True})
    worker.claim().complete("an answer")
    api.client.delete(f"{{pm}}:job:{made.json['id']}:result")

    assert client.get(f"/v1/responses/{made.json['id']}").status_code == 404


@pytest.mark.parametrize(("background", "num_events"), [(False, 0), (True, 1)])
def test_only_a_response_that_nobody_waits_for_is_an_event(
    api, post, worker, queue, background, num_events
):
    endpoint = EndpointForm("mine", "https://example.com/", (EventType.RESPONSE_COMPLETED,))
    EndpointStore(api.client).create("default", endpoint)
    answer = post("/v1/responses", model="tiny", input="hi", background=background)

    worker.claim().complete("an answer")

    assert answer.result().status_code == 200
    assert len(queue.claim(WEBHOOK_QUEUE, "webhooks", 9)) == num_events
