"""What the unmodified client raises, and how often and when it asks again, by our answers alone.

The client is the package's own; only its sleeping is played, and its network is the application.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from api.app import create_api
from queueing.admission import Admission, RateLimits
from queueing.errors import FailureCode
from queueing.job import Choice, JobResult, JobState, Outcome
from queueing.tenants import Tenant, TenantStore
from tests.api.conftest import API_KEY
from tests.api.test_jobs import QUEUE
from tests.support.batch_bench import a_line, as_jsonl

RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "input": "hi",
    "max_output_tokens": 5,
    "background": True,
}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
LIMITS = RateLimits(tokens_per_min=6_000, tokens_per_day=100_000)


class Wire(httpx2.BaseTransport):
    """The way to the application. Counts requests; the first `num_lost` answers do not arrive."""

    def __init__(self, app: Any) -> None:
        self.num_lost = 0
        self.sent: list[str] = []
        self._inner = httpx2.WSGITransport(app=app)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(request.headers["x-stainless-retry-count"])
        answer = self._inner.handle_request(request)
        if len(self.sent) <= self.num_lost:
            raise httpx2.ReadError("the connection broke", request=request)
        return answer


class Sleeper:
    """Sleeps no time at all, but tells how long, and what happens meanwhile."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []
        self.meanwhile = lambda: None

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.meanwhile()


@pytest.fixture
def sleeper(monkeypatch):
    sleeper = Sleeper()
    monkeypatch.setattr("openai._base_client.time.sleep", sleeper.sleep)
    return sleeper


@pytest.fixture
def wire(api):
    return Wire(api.app)


def client_of(wire: Wire, api_key: str = API_KEY) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(transport=wire)
    return openai.OpenAI(api_key=api_key, base_url="http://api/v1", http_client=http)


@pytest.fixture
def ai(wire):
    with client_of(wire) as client:
        yield client


@pytest.fixture
def limited(api, wire):
    """Return a client whose tenant has limits."""
    tenants = TenantStore(api.client)
    tenants.put(Tenant("acme", limits=LIMITS))
    _, api_key = tenants.create_key("acme")
    with client_of(wire, api_key) as client:
        yield client


def end_next(queue, result: JobResult) -> None:
    """Play the worker of the next job."""
    while not (claims := queue.claim(QUEUE, "worker", 1)):
        pass
    queue.finish(Outcome(claims[0].lease, result))


def num_jobs(queue) -> int:
    total: int = queue.totals(QUEUE).get("submitted", 0)
    return total


@pytest.mark.usefixtures("sleeper")
def test_another_body_under_the_same_key_is_a_conflict_asked_once(ai, wire):
    key = {"Idempotency-Key": "once"}
    ai.responses.create(**RESPONSE, extra_headers=key)

    with pytest.raises(openai.ConflictError) as caught:
        ai.responses.create(**{**RESPONSE, "input": "other"}, extra_headers=key)

    assert caught.value.code == "idempotency_conflict"
    assert wire.sent == ["0", "0"]


@pytest.mark.usefixtures("sleeper")
@pytest.mark.parametrize(
    ("changes", "kind", "code"),
    [
        ({"temperature": 9}, openai.BadRequestError, "invalid_request"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "unsupported_parameter"),
        ({"extra_body": {"x": 1}}, openai.BadRequestError, "unknown_parameter"),
        ({"input": "x" * 600}, openai.BadRequestError, "context_length_exceeded"),
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ({"input": "x" * 70_000}, openai.APIStatusError, "request_too_large"),
    ],
)
def test_the_callers_fault_is_told_in_the_clients_own_class_and_asked_once(
    ai, wire, changes, kind, code
):
    with pytest.raises(kind) as caught:
        ai.responses.create(**{**RESPONSE, **changes})

    assert caught.value.code == code
    assert str(caught.value.request_id).startswith("req_")
    assert wire.sent == ["0"]


@pytest.mark.usefixtures("sleeper")
def test_a_bad_key_and_a_missing_right_are_asked_once(api, wire):
    tenants = TenantStore(api.client)
    tenants.put(Tenant("bulk-only", priorities=frozenset()))
    _, api_key = tenants.create_key("bulk-only")

    with client_of(wire, "wrong") as client, pytest.raises(openai.AuthenticationError):
        client.responses.create(**RESPONSE)
    with client_of(wire, api_key) as client, pytest.raises(openai.PermissionDeniedError):
        client.responses.create(**RESPONSE)

    assert wire.sent == ["0", "0"]


def test_a_rate_that_is_used_up_is_waited_for_as_long_as_it_was_told(limited, api, wire, sleeper):
    Admission(api.client).take("acme", LIMITS, 9_000)
    sleeper.meanwhile = lambda: api.client.delete("{pm}:tenant:acme:buckets")

    response = limited.responses.create(**RESPONSE)

    assert response.status == "queued"
    assert wire.sent == ["0", "1"]
    assert sleeper.slept_s == [1]


@pytest.mark.usefixtures("sleeper")
def test_a_day_that_is_used_up_is_a_rate_limit_error_asked_once(limited, api, wire):
    Admission(api.client).take("acme", RateLimits(tokens_per_day=100_000), 100_000)

    with pytest.raises(openai.RateLimitError) as caught:
        limited.responses.create(**RESPONSE)

    assert caught.value.code == "quota_exceeded"
    assert wire.sent == ["0"]


def test_a_full_queue_is_asked_again_when_it_said(settings, sleeper):
    api = create_api(settings.model_copy(update={"max_queued_jobs": 1}))
    wire = Wire(api.app)
    with client_of(wire) as client:
        first = client.responses.create(**RESPONSE)
        sleeper.meanwhile = lambda: api.app.test_client().post(
            f"/v1/responses/{first.id}/cancel", headers={"Authorization": f"Bearer {API_KEY}"}
        )

        second = client.responses.create(**{**RESPONSE, "input": "next"})

    assert second.status == "queued"
    assert wire.sent == ["0", "0", "1"]
    assert sleeper.slept_s == [5]
    api.close()


def test_a_server_that_drains_is_asked_again_and_told_as_a_server_error(ai, api, wire, sleeper):
    api.drain.begin()

    with pytest.raises(openai.InternalServerError) as caught:
        ai.responses.create(**RESPONSE)

    assert (caught.value.status_code, caught.value.code) == (503, "draining")
    assert wire.sent == ["0", "1", "2"]
    assert sleeper.slept_s == [5, 5]


@pytest.mark.usefixtures("sleeper")
def test_an_answer_that_took_all_the_time_there_is_is_not_asked_for_again(settings):
    api = create_api(settings.model_copy(update={"answer_limit_s": 0.05}))
    wire = Wire(api.app)

    with client_of(wire) as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**CHAT)

    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert wire.sent == ["0"]
    api.close()


@pytest.mark.usefixtures("sleeper")
@pytest.mark.parametrize(
    ("state", "code", "num_asked"),
    [
        (JobState.DEAD, FailureCode.WORKER_LOST, 1),
        (JobState.CANCELLED, FailureCode.CANCELLED, 1),
        (JobState.FAILED, FailureCode.ENGINE_ERROR, 3),
    ],
)
def test_a_job_is_sent_again_only_where_that_may_help(ai, wire, queue, state, code, num_asked):
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(ai.chat.completions.create, **CHAT)
        for _ in range(num_asked):
            end_next(queue, JobResult.failure(state, code, "it broke"))

        with pytest.raises(openai.APIStatusError) as caught:
            answer.result()

    assert caught.value.code == code
    assert len(wire.sent) == num_asked


@pytest.mark.usefixtures("sleeper")
def test_a_response_whose_first_answer_was_lost_is_the_same_response(ai, wire, queue):
    wire.num_lost = 2

    response = ai.responses.create(**RESPONSE)

    assert wire.sent == ["0", "1", "2"]
    assert num_jobs(queue) == 1
    assert ai.responses.retrieve(response.id).status == "queued"


@pytest.mark.usefixtures("sleeper")
def test_a_file_and_a_batch_whose_first_answers_were_lost_are_the_same(ai, wire, settings):
    wire.num_lost = 1
    content = as_jsonl([a_line("a")])
    file = ai.files.create(file=("lines.jsonl", content), purpose="batch")
    wire.num_lost = len(wire.sent) + 1

    batch = ai.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )

    assert wire.sent == ["0", "1", "0", "1"]
    assert [one.id for one in ai.batches.list()] == [batch.id]
    assert [one.id for one in ai.files.list()] == [file.id]
    assert len(list((settings.data_dir / "files").iterdir())) == 1


def test_two_equal_files_that_are_no_repeats_are_two_files(ai):
    content = as_jsonl([a_line("a")])

    ids = {ai.files.create(file=("lines.jsonl", content), purpose="batch").id for _ in range(2)}

    assert len(ids) == 2


@pytest.mark.usefixtures("sleeper")
def test_a_chat_whose_caller_has_a_key_gets_the_first_answer_again(ai, wire, queue):
    wire.num_lost = 1
    done = JobResult(JobState.COMPLETED, (Choice(0, "an answer", "stop"),), model="tiny")

    with ThreadPoolExecutor(1) as executor:
        key = {"Idempotency-Key": "once"}
        answer = executor.submit(ai.chat.completions.create, **CHAT, extra_headers=key)
        end_next(queue, done)

    assert answer.result().choices[0].message.content == "an answer"
    assert wire.sent == ["0", "1"]
    assert num_jobs(queue) == 1
