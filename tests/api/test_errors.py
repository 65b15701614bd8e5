import json
import re

import pytest

from api.app import create_api
from queueing.job import new_id
from tests.api.conftest import API_KEY

JSON = {"Content-Type": "application/json"}


def assert_refused(answer, status, code, param=None):
    error = answer.json["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert answer.json["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {API_KEY} ",
        f"Bearer {API_KEY}x",
        f"Bearer {API_KEY[:-1]}",
        f"Basic {API_KEY}",
        API_KEY,
        "Bearer " + "x" * 10_000,
        "Bearer k\u00fcy",
        "Bearer a\u0000b",
    ],
)
def test_a_request_without_the_right_key_is_401(api, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}

    answer = api.app.test_client().get("/v1/models", headers=headers)

    assert_refused(answer, 401, "invalid_api_key")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json["error"]["type"] == "authentication_error"


def test_a_key_in_the_address_is_no_key(api):
    answer = api.app.test_client().get(f"/v1/models?api_key={API_KEY}")

    assert_refused(answer, 401, "invalid_api_key")


def test_the_name_of_the_scheme_is_taken_in_any_case(api):
    headers = {"Authorization": f"bearer {API_KEY}"}

    assert api.app.test_client().get("/v1/models", headers=headers).status_code == 200


def test_only_health_metrics_and_documentation_are_open(api):
    client = api.app.test_client()
    paths = {"/livez", "/readyz", "/metrics", "/docs", "/openapi.json"}

    rules = {rule.rule for rule in api.app.url_map.iter_rules()}
    closed = {rule: client.get(re.sub("<.*?>", new_id("job_"), rule)) for rule in rules - paths}

    assert {client.get(path).status_code for path in paths} == {200}
    assert {answer.status_code for answer in closed.values()} == {401}


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/jobs/{new_id('job_')}",
        "/v1/jobs/job_short",
        f"/v1/jobs/{new_id('batch_')}",
        f"/v1/jobs/{new_id('evt_')}",
        f"/v1/jobs/{new_id('job_')}:request",
        f"/v1/jobs/{new_id('job_')}%0a",
        f"/v1/jobs/{new_id('job_')}%00",
        "/v1/jobs/..%2f..%2fetc%2fpasswd",
        "/v1/jobs/job_%F0%9F%98%80aaaaaaaaaaaaaaaaaaaaa",
        "/v1/jobs/",
        "//v1/jobs",
        "/v1/nothing",
        "/",
    ],
)
def test_what_is_not_there_is_404(client, path):
    assert_refused(client.get(path), 404, "not_found")


def test_a_model_that_is_not_served_is_404_whatever_its_name(client):
    for name in ("other", "../tiny", "/etc/passwd", "http://127.0.0.1/", "tiny\u0000", "x" * 256):
        assert_refused(
            client.post("/v1/jobs", json={"prompt": "a", "model": name}),
            404,
            "model_not_found",
            "model",
        )
    assert_refused(client.get("/v1/models/other"), 404, "model_not_found", "model")


def test_another_tenants_job_answers_as_an_unknown_one_does(client, api):
    sent = client.post("/v1/jobs", json={"prompt": "hi"})
    unknown = f"/v1/jobs/{new_id('job_')}"
    (key,) = api.client.keys("*job:job_??????????????????????")
    api.client.hset(key, "tenant", "somebody-else")

    def bodies(path):
        answers = [client.get(path), client.delete(path), client.post(f"{path}/cancel")]
        return [(answer.status_code, answer.json["error"]) for answer in answers]

    assert bodies(sent.headers["Location"]) == bodies(unknown)
    assert api.client.hget(key, "state") == "queued"


def test_a_wrong_method_is_405_and_names_the_right_ones(client):
    answer = client.put("/v1/jobs", json={})

    assert_refused(answer, 405, "method_not_allowed")
    assert "POST" in answer.headers["Allow"]


def test_a_body_over_the_limit_is_413_and_one_at_the_limit_is_read(client):
    def body(num_bytes):
        return b'{"prompt":"%s"}' % (b"x" * (num_bytes - 13))

    over = client.post("/v1/jobs", data=body(65_537), headers=JSON)
    at = client.post("/v1/jobs", data=body(65_536), headers=JSON)

    assert_refused(over, 413, "request_too_large")
    assert_refused(at, 400, "context_length_exceeded")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=utf-16"},
        {**JSON, "Content-Encoding": "gzip"},
        {**JSON, "Content-Encoding": "br"},
    ],
)
def test_another_type_or_a_compressed_body_is_415(client, headers):
    answer = client.post("/v1/jobs", data=b'{"prompt":"a"}', headers=headers)

    assert_refused(answer, 415, "unsupported_media_type")


def test_a_full_queue_is_503_with_the_time_to_come_back(settings):
    api = create_api(settings.model_copy(update={"max_queued_jobs": 1}))
    client = api.app.test_client()
    headers = {"Authorization": f"Bearer {API_KEY}"}
    client.post("/v1/jobs", json={"prompt": "a"}, headers=headers)

    answer = client.post("/v1/jobs", json={"prompt": "a"}, headers=headers)

    api.close()
    assert_refused(answer, 503, "queue_full")
    assert int(answer.headers["Retry-After"]) > 0


def test_a_crowded_queue_sheds_what_can_wait_with_429(settings):
    api = create_api(settings.model_copy(update={"max_queued_jobs": 5}))
    client = api.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {API_KEY}"
    for _ in range(4):
        client.post("/v1/jobs", json={"prompt": "a"})

    bulk = client.post("/v1/jobs", json={"prompt": "a", "priority": "bulk"})
    standard = client.post("/v1/jobs", json={"prompt": "a"})

    api.close()
    assert_refused(bulk, 429, "overloaded")
    assert 0 < int(bulk.headers["Retry-After"]) <= 120
    assert standard.status_code == 202


def test_a_deadline_out_of_reach_is_refused_to_who_asks(client, api):
    asked = {"prompt": "a", "deadline_s": 1}
    client.post("/v1/jobs", json={"prompt": "a"})
    (load,) = api.client.keys("*generate.tiny:load")
    api.client.hset(load, mapping={"speed": 0.001, "pace": 1000})

    refused = client.post("/v1/jobs", json=asked | {"must_meet_deadline": True})
    accepted = client.post("/v1/jobs", json=asked)

    assert_refused(refused, 400, "deadline_infeasible", "deadline_s")
    assert accepted.status_code == 202


def test_a_draining_server_takes_no_work_and_is_not_ready(client, api):
    sent = client.post("/v1/jobs", json={"prompt": "a"})

    api.begin_draining()

    refused = client.post("/v1/jobs", json={"prompt": "a"})
    assert_refused(refused, 503, "draining")
    assert int(refused.headers["Retry-After"]) > 0
    assert client.get("/readyz").json == {"status": "draining"}
    assert client.get("/readyz").status_code == 503
    assert client.get("/livez").status_code == 200
    assert client.get(sent.headers["Location"]).status_code == 200


def test_an_unforeseen_failure_is_a_bare_500(api, client):
    def fail():
        raise RuntimeError("CANARY-7f3a")

    api.app.add_url_rule("/v1/fails", view_func=fail)

    answer = client.get("/v1/fails")

    assert_refused(answer, 500, "internal_error")
    assert b"CANARY" not in answer.data


@pytest.mark.parametrize("sent", ["abc-1", "a.b:c_d", "0" * 128])
def test_a_plain_request_id_is_kept(client, sent):
    assert client.get("/livez", headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", " ", "a b", "-x", "a" * 129, "<b>", "a\u00e9", "{}", "a;b"])
def test_any_other_request_id_is_replaced(client, sent):
    answer = client.get("/livez", headers={"x-request-id": sent})

    assert re.fullmatch("req_[0-9A-Za-z]{22}", answer.headers["x-request-id"])


def test_every_answer_has_a_request_id_of_its_own(client):
    answers = [client.get(path) for path in ("/livez", "/v1/models", "/v1/jobs/x", "/nothing")]

    assert len({answer.headers["x-request-id"] for answer in answers}) == 4


def test_the_query_is_as_strict_as_a_body(client):
    path = client.post("/v1/jobs", json={"prompt": "a"}).headers["Location"]

    assert_refused(client.get(f"{path}?what=1"), 400, "unknown_parameter", "what")
    assert_refused(client.get(f"{path}?wait=1&wait=2"), 400, "invalid_request", "wait")
    assert_refused(client.post("/v1/jobs?x=1", json={}), 400, "unknown_parameter", "x")
    assert_refused(client.delete(f"{path}?force=1"), 400, "unknown_parameter", "force")


@pytest.mark.parametrize("wait", ["", "-1", "x", "nan", "inf", "1e1", "61", "6", "1_0", "\u0661"])
def test_a_wait_that_is_no_time_or_too_long_is_400(client, wait):
    path = client.post("/v1/jobs", json={"prompt": "a"}).headers["Location"]

    answer = client.get(path, query_string={"wait": wait})

    assert_refused(answer, 400, "invalid_request", "wait")


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "k\u00fc"])
def test_an_idempotency_key_that_is_no_plain_word_is_400(client, key):
    answer = client.post("/v1/jobs", json={"prompt": "a"}, headers={"Idempotency-Key": key})

    assert_refused(answer, 400, "invalid_request", "Idempotency-Key")


def test_a_webhook_url_is_checked_before_anything_is_queued(client, api):
    body = {"prompt": "a", "webhook_url": "https://169.254.169.254/"}

    answer = client.post("/v1/jobs", json=body)

    assert_refused(answer, 400, "webhook_url_not_allowed", "webhook_url")
    assert api.client.keys("*job:*") == []


def test_a_refusal_never_quotes_the_prompt(client):
    canary = "CANARY-7f3a"
    bodies = [
        {"prompt": canary, "max_tokens": canary},
        {"prompt": {"text": canary}},
        {"prompt": canary, "temperature": 3},
        {"messages": [{"role": canary, "content": canary}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": canary, "x": 1}]}]},
        {"prompt": canary * 60},
    ]

    answers = [client.post("/v1/jobs", data=json.dumps(body), headers=JSON) for body in bodies]

    assert {answer.status_code for answer in answers} == {400}
    assert not any(canary.encode() in answer.data for answer in answers)
