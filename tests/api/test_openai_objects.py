"""Every object that we return, at every stage, against the client's own models: raw JSON, strictly.

A wrong type, a missing field and a field that the client does not know are faults alike.
"""

import io
import json
from typing import Any

import pytest
from openai.pagination import SyncCursorPage, SyncPage
from openai.types import Batch, ErrorObject, FileDeleted, FileObject, Model
from openai.types.responses import Response, ResponseErrorEvent

from queueing.errors import FailureCode
from queueing.job import Choice, JobResult, JobState, Lease, Outcome, Usage
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.token_stream import Piece, TokenStreams
from tests.api.test_jobs import QUEUE
from tests.support.batch_bench import BatchBench, a_line, as_jsonl
from tests.support.strict import strictly

RESPONSE = {"model": "tiny", "input": "hi", "background": True}
CHAT = "/v1/chat/completions"


@pytest.fixture
def bench(redis_url, settings):
    """Return the worker's side of batches, a minute ahead of the store."""
    connection = connect(redis_url)
    bench = BatchBench(connection, settings.data_dir)
    seconds, _ = connection.time()
    bench.clock.advance(ms=(seconds + 60) * 1_000 - bench.clock.now_ms())
    yield bench
    connection.close()


def upload(client, content: bytes, **fields: str) -> str:
    form = {"purpose": "batch", "file": (io.BytesIO(content), "lines.jsonl"), **fields}
    file_id: str = client.post("/v1/files", data=form).json["id"]
    return file_id


def create(client, content: bytes, **fields: Any) -> str:
    asked = {"input_file_id": upload(client, content), "endpoint": CHAT, "completion_window": "24h"}
    batch_id: str = client.post("/v1/batches", json=asked | fields).json["id"]
    return batch_id


def batch_of(client, batch_id: str) -> Batch:
    """Return a batch as the client reads it; `notes` is a field of our own, and documented."""
    told = json.loads(client.get(f"/v1/batches/{batch_id}").data)
    del told["notes"]
    return strictly(Batch, json.dumps(told))


def response_of(client, response_id: str) -> Response:
    return strictly(Response, client.get(f"/v1/responses/{response_id}").data)


def claim(queue: JobQueue) -> Lease:
    (claimed,) = queue.claim(QUEUE, "worker", 1)
    return claimed.lease


def completed(reason: str) -> JobResult:
    choices = (Choice(0, "an answer", reason),)
    return JobResult(JobState.COMPLETED, choices, usage=Usage(5, 2, 1), model="tiny")


def test_a_response_is_the_clients_own_at_every_stage_of_its_way(client, queue):
    response_id = client.post("/v1/responses", json=RESPONSE).json["id"]
    queued = response_of(client, response_id)
    lease = claim(queue)
    running = response_of(client, response_id)
    queue.finish(Outcome(lease, completed("stop")))
    ended = response_of(client, response_id)

    assert [one.status for one in (queued, running, ended)] == [
        "queued",
        "in_progress",
        "completed",
    ]
    assert ended.output_text == "an answer"


@pytest.mark.parametrize(
    ("result", "status", "reason", "code"),
    [
        (completed("length"), "incomplete", "max_output_tokens", None),
        (
            JobResult.failure(JobState.FAILED, FailureCode.ENGINE_ERROR, "it broke"),
            "failed",
            None,
            "server_error",
        ),
        (
            JobResult.failure(JobState.DEAD, FailureCode.WORKER_LOST, "it killed them"),
            "failed",
            None,
            "server_error",
        ),
        (
            JobResult.failure(JobState.EXPIRED, FailureCode.DEADLINE_EXCEEDED, "too late"),
            "failed",
            None,
            "server_error",
        ),
        (
            JobResult.failure(JobState.FAILED, FailureCode.CONTEXT_LENGTH_EXCEEDED, "too long"),
            "failed",
            None,
            "invalid_prompt",
        ),
    ],
)
def test_a_response_is_the_clients_own_however_it_ends(client, queue, result, status, reason, code):
    response_id = client.post("/v1/responses", json=RESPONSE).json["id"]
    queue.finish(Outcome(claim(queue), result))

    response = response_of(client, response_id)

    assert response.status == status
    assert (response.incomplete_details and response.incomplete_details.reason) == reason
    assert (response.error and response.error.code) == code


def test_a_cancelled_response_is_the_clients_own(client):
    response_id = client.post("/v1/responses", json=RESPONSE).json["id"]

    answer = client.post(f"/v1/responses/{response_id}/cancel")

    assert strictly(Response, answer.data).status == "cancelled"


def test_a_response_repeats_all_that_it_was_asked_with(client):
    asked = {
        "instructions": "be brief",
        "max_output_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "user": "u",
        "metadata": {"a": "b", "nul": "\u0000"},
        "service_tier": "flex",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
    }
    response_id = client.post("/v1/responses", json=RESPONSE | asked).json["id"]

    response = response_of(client, response_id)

    told = {name: getattr(response, name) for name in asked if name != "include"}
    assert told == {name: value for name, value in asked.items() if name != "include"}


def test_a_batch_is_the_clients_own_from_its_start_to_its_end(client, bench):
    batch_id = create(client, as_jsonl(map(a_line, "abc")), metadata={"a": "b"})
    seen = [batch_of(client, batch_id)]
    bench.tick()
    seen.append(batch_of(client, batch_id))
    bench.serve(2)
    client.post(f"/v1/batches/{batch_id}/cancel")
    seen.append(batch_of(client, batch_id))
    bench.tick()
    seen.append(batch_of(client, batch_id))

    assert [batch.status for batch in seen] == [
        "validating",
        "in_progress",
        "cancelling",
        "cancelled",
    ]
    counts = seen[-1].request_counts
    assert counts is not None
    assert counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    assert seen[-1].usage is not None
    assert seen[-1].usage.total_tokens == 2 * 5


def test_a_completed_batch_and_its_files_are_the_clients_own(client, bench):
    expiry = {"anchor": "created_at", "seconds": 7_200}
    content = as_jsonl([a_line("a"), a_line("b", model="nobody")])
    batch_id = create(client, content, output_expires_after=expiry)
    bench.tick()
    bench.serve()
    bench.tick()

    batch = batch_of(client, batch_id)

    assert batch.status == "completed"
    for file_id in (batch.output_file_id, batch.error_file_id):
        file = strictly(FileObject, client.get(f"/v1/files/{file_id}").data)
        assert (file.purpose, file.status) == ("batch_output", "processed")
        assert file.expires_at is not None
        # Counted from when the file was made.
        assert file.expires_at - file.created_at == 7_200


def test_a_failed_batch_is_the_clients_own_and_lists_its_faults(client, bench):
    batch_id = create(client, b"{\n" + as_jsonl([a_line("a"), a_line("a")]))
    bench.tick()

    batch = batch_of(client, batch_id)

    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(one.code, one.line) for one in batch.errors.data or ()] == [
        ("invalid_json_line", 1),
        ("duplicate_custom_id", 3),
    ]
    assert batch.failed_at is not None


def test_an_expired_batch_is_the_clients_own(client, bench):
    batch_id = create(client, as_jsonl([a_line("a")]))
    bench.tick()
    bench.client.hset(f"{{pm}}:batch:{batch_id}", "expires_ms", 1)
    bench.client.zadd("{pm}:queue:batches:later", {batch_id: 0}, xx=True)
    bench.tick()

    batch = batch_of(client, batch_id)

    assert batch.status == "expired"
    assert batch.expired_at is not None
    assert batch.error_file_id is not None


def test_pages_and_files_are_the_clients_own(client):
    good, bad = upload(client, as_jsonl([a_line("a")])), upload(client, b"hello")
    asked = {"input_file_id": good, "endpoint": CHAT, "completion_window": "24h"}
    client.post("/v1/batches", json=asked)

    files = SyncCursorPage[FileObject].model_validate_json(client.get("/v1/files").data)
    batches = SyncCursorPage[Batch].model_validate_json(client.get("/v1/batches").data)
    models = strictly(SyncPage[Model], client.get("/v1/models").data)

    assert {(file.id, file.status) for file in files.data} == {(good, "processed"), (bad, "error")}
    assert len(batches.data) == len(models.data) == 1
    assert strictly(FileDeleted, client.delete(f"/v1/files/{bad}").data).deleted


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", CHAT, {"model": "tiny", "messages": []}),
        ("POST", CHAT, {"model": "nobody", "messages": [{"role": "user", "content": "a"}]}),
        ("POST", "/v1/completions", {"model": "tiny", "prompt": "a", "x": 1}),
        ("POST", "/v1/responses", {"model": "tiny"}),
        ("POST", "/v1/batches", {}),
        ("GET", "/v1/files/file-x", None),
        ("GET", "/v1/nothing", None),
        ("PUT", "/v1/files", None),
    ],
)
def test_an_error_is_the_clients_own(client, method, path, body):
    answer = client.open(path, method=method, json=body)

    error = strictly(ErrorObject, json.dumps(answer.json["error"]))
    assert answer.status_code in (400, 404, 405)
    assert error.type == "invalid_request_error"
    assert error.message


def test_the_error_in_a_stream_is_the_clients_own_event(client, api, queue):
    made = client.post("/v1/responses", json=RESPONSE | {"stream": True})
    lease = claim(queue)
    TokenStreams(api.client).append([(lease, Piece(0, 0, "another"))])
    queue.finish(Outcome(lease, completed("stop")))

    *_, last = [line for line in made.text.splitlines() if line.startswith("data: ")]

    error = strictly(ResponseErrorEvent, last.removeprefix("data: "))
    assert error.code == "worker_lost"
