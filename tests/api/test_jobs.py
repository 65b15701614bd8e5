import re

from queueing.errors import FailureCode
from queueing.job import (
    Choice,
    JobResult,
    JobState,
    Outcome,
    Priority,
    Usage,
    generate_queue,
)
from queueing.wire import decode_request

QUEUE = generate_queue("tiny")


def complete_one(queue, text="an answer"):
    (claim,) = queue.claim(QUEUE, "worker", 1)
    result = JobResult(
        state=JobState.COMPLETED,
        choices=(Choice(0, text, "stop"),),
        usage=Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=1),
        model="tiny",
        stages={"prefill_ms": 3.0},
    )
    queue.finish(Outcome(claim.lease, result))
    return claim


def test_a_submit_is_accepted_with_an_id_and_the_place_to_poll(client):
    answer = client.post("/v1/jobs", json={"prompt": "hello"})

    job_id = answer.json["id"]
    assert answer.status_code == 202
    assert re.fullmatch("job_[0-9A-Za-z]{22}", job_id)
    assert answer.headers["Location"] == f"/v1/jobs/{job_id}"
    assert answer.json == {
        "id": job_id,
        "object": "job",
        "model": "tiny",
        "priority": "standard",
        "state": "queued",
    }


def test_a_worker_reads_what_was_asked_for(client, queue):
    client.post(
        "/v1/jobs",
        json={
            "prompt": "a\u0000b",
            "model": "tiny",
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "seed": -4,
            "stop": "END",
            "ignore_eos": True,
            "priority": "realtime",
            "deadline_s": 60,
            "metadata": {"team": "search"},
        },
    )

    (claim,) = queue.claim(QUEUE, "worker", 1)

    request = decode_request(claim.request)
    assert claim.priority is Priority.REALTIME
    assert 0 < claim.remaining_ms <= 60_000
    assert (request.prompt, request.messages, request.max_tokens) == ("a\u0000b", None, 7)
    assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.9, 3)
    assert (request.seed, request.stop, request.ignore_eos) == (-4, ("END",), True)


def test_messages_become_what_a_chat_template_reads(client, queue):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
    ]
    client.post("/v1/jobs", json={"messages": messages})

    (claim,) = queue.claim(QUEUE, "worker", 1)

    assert decode_request(claim.request).messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo"},
    )


def test_a_job_that_names_no_limit_gets_the_default_cut_to_the_context(client, queue):
    client.post("/v1/jobs", json={"prompt": "x" * 500})

    (claim,) = queue.claim(QUEUE, "worker", 1)

    assert decode_request(claim.request).max_tokens == 512 - 500


def test_a_prompt_may_fill_the_context_but_for_one_token(client):
    fits = client.post("/v1/jobs", json={"prompt": "x" * 511, "max_tokens": 1})
    full = client.post("/v1/jobs", json={"prompt": "x" * 512, "max_tokens": 1})
    over = client.post("/v1/jobs", json={"prompt": "x" * 513})

    assert fits.status_code == 202
    assert [full.status_code, over.status_code] == [400, 400]
    assert full.json["error"]["code"] == "context_length_exceeded"
    assert "context is 512 tokens; the prompt has 512" in full.json["error"]["message"]


def test_a_queued_job_tells_its_state_and_deadline(client):
    sent = client.post("/v1/jobs", json={"prompt": "hi", "deadline_s": 9, "metadata": {"a": "b"}})

    job = client.get(sent.headers["Location"]).json

    assert (job["state"], job["object"], job["attempts"], job["losses"]) == ("queued", "job", 0, 0)
    assert job["deadline_at"] - job["created_at"] == 9
    assert job["metadata"] == {"a": "b"}
    assert (job["started_at"], job["finished_at"], job["result"], job["error"]) == (None,) * 4
    assert job["stages"]["validate_ms"] > 0


def test_a_completed_job_gives_text_usage_and_stages(client, queue):
    sent = client.post("/v1/jobs", json={"prompt": "hi"})
    complete_one(queue, "the text")

    job = client.get(sent.headers["Location"]).json

    assert job["state"] == "completed"
    assert job["result"] == {"text": "the text", "finish_reason": "stop", "choices": None}
    assert job["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "cached_tokens": 1,
    }
    assert job["stages"].keys() >= {"validate_ms", "queue_ms", "prefill_ms"}
    assert job["created_at"] <= job["started_at"] <= job["finished_at"]
    assert job["error"] is None


def test_a_failed_job_gives_its_error(client, queue):
    sent = client.post("/v1/jobs", json={"prompt": "hi"})
    (claim,) = queue.claim(QUEUE, "worker", 1)
    failure = JobResult.failure(JobState.FAILED, FailureCode.ENGINE_ERROR, "it broke")
    queue.finish(Outcome(claim.lease, failure))

    job = client.get(sent.headers["Location"]).json

    assert job["state"] == "failed"
    assert job["result"] is None
    assert job["error"] == {"code": "engine_error", "message": "it broke", "param": None}


def test_a_text_that_has_expired_is_told_from_one_that_never_was(client, queue, api):
    sent = client.post("/v1/jobs", json={"prompt": "hi"})
    complete_one(queue)
    (result_key,) = api.client.keys("*:result")
    api.client.delete(result_key)

    answer = client.get(sent.headers["Location"])

    assert answer.status_code == 200
    assert answer.json["state"] == "completed"
    assert answer.json["error"]["code"] == "result_expired"


def test_a_cancelled_job_ends_and_stays_cancelled(client, queue):
    sent = client.post("/v1/jobs", json={"prompt": "hi"})

    first = client.post(sent.headers["Location"] + "/cancel")
    again = client.post(sent.headers["Location"] + "/cancel")

    assert first.json["state"] == again.json["state"] == "cancelled"
    assert first.json["error"]["code"] == "cancelled"
    assert queue.claim(QUEUE, "worker", 1) == []


def test_cancelling_a_running_job_makes_its_result_stale(client, queue):
    sent = client.post("/v1/jobs", json={"prompt": "hi"})
    (claim,) = queue.claim(QUEUE, "worker", 1)

    client.post(sent.headers["Location"] + "/cancel")

    assert queue.renew([claim.lease]) == {claim.lease.job_id}
    assert client.get(sent.headers["Location"]).json["state"] == "cancelled"


def test_an_erased_job_is_gone_with_its_texts(client, api):
    sent = client.post("/v1/jobs", json={"prompt": "CANARY-7f3a"})

    erased = client.delete(sent.headers["Location"])

    assert (erased.status_code, erased.data) == (204, b"")
    assert client.get(sent.headers["Location"]).status_code == 404
    assert client.delete(sent.headers["Location"]).status_code == 404
    assert api.client.keys("*job:*") == []


def test_an_equal_request_with_the_same_key_is_the_same_job(client, queue):
    headers = {"Idempotency-Key": "order-17"}
    first = client.post("/v1/jobs", json={"prompt": "hi", "seed": 1}, headers=headers)
    complete_one(queue)

    again = client.post("/v1/jobs", json={"seed": 1, "prompt": "hi"}, headers=headers)

    assert again.status_code == 202
    assert again.json["id"] == first.json["id"]
    assert again.json["state"] == "completed"
    assert queue.claim(QUEUE, "worker", 1) == []


def test_another_request_with_the_same_key_is_a_conflict_not_to_be_repeated(client):
    headers = {"Idempotency-Key": "order-17"}
    client.post("/v1/jobs", json={"prompt": "hi"}, headers=headers)

    other = client.post("/v1/jobs", json={"prompt": "ho"}, headers=headers)

    assert other.status_code == 409
    assert other.json["error"]["code"] == "idempotency_conflict"
    assert other.headers["x-should-retry"] == "false"


def test_models_are_listed_in_the_shape_of_openai(client):
    listed = client.get("/v1/models").json
    one = client.get("/v1/models/tiny").json

    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["owned_by"]) == ("tiny", "model", "promptmill")
    assert isinstance(one["created"], int)
