"""The tables of hostile bodies on the ways of asking that OpenAI's clients know."""

import json

import pytest

from api.app import create_api
from tests.api.test_hostile_bodies import JSON, NOT_JSON

GOOD: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
    "/v1/responses": {"model": "tiny", "input": "hi", "background": True},
}
CHAT, COMPLETIONS, RESPONSES = GOOD
WRONG: dict[str, list[object]] = {
    "n": [100_000, 0, -1, True, "2", 1.0],
    "logit_bias": [[], {"a": 1}, {"5": 1e9}, {"5": "1"}, {str(n): 1 for n in range(2000)}],
    "presence_penalty": [-3, "0", True, 1e300],
    "frequency_penalty": [3, [], {}],
    "temperature": [-0.1, 2.1, "1", True],
    "top_p": [0, 2, "1"],
    "seed": [2**63, 1.5, "1"],
    "stop": ["", [""], ["a"] * 5, "x" * 16_385],
    "max_tokens": [0, -5, 10**12, 2**63, 1.5, 1e3, "10", True],
    "stream": ["yes", 1],
    "user": [5, "u" * 513],
}
CASES = [
    (path, name, value)
    for path in (CHAT, COMPLETIONS)
    for name, values in WRONG.items()
    for value in values
]
WRONG_RESPONSE: dict[str, list[object]] = {
    "max_output_tokens": [0, -5, 10**12, 2**63, 1.5, 1e3, "10", True],
    "temperature": WRONG["temperature"],
    "top_p": WRONG["top_p"],
    "top_logprobs": [-1, 21, 1.0, "2", True],
    "include": ["x", ["x"], [1], {}],
    "stream": WRONG["stream"],
    "user": WRONG["user"],
    "background": ["true", 1],
    "metadata": [{"a": 1}, {"a" * 65: "b"}, {"a": "b" * 513}],
    "service_tier": ["scale", "fast", 1],
}
CASES += [(RESPONSES, name, value) for name, values in WRONG_RESPONSE.items() for value in values]


@pytest.mark.parametrize("path", [*GOOD, "/v1/batches"])
@pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_strict_json_is_400(client, path, data):
    refused = client.post(path, data=data, headers=JSON)

    assert refused.status_code == 400
    assert refused.json["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(("path", "name", "value"), CASES)
def test_a_value_out_of_range_or_type_is_400_naming_the_field(client, path, name, value):
    refused = client.post(path, json=GOOD[path] | {name: value})

    assert refused.status_code == 400
    assert refused.json["error"]["param"].startswith(name)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("name", ["chat_template", "tenant_id", "priority", "webhook_url", "x"])
def test_what_nobody_knows_is_refused_by_name(client, path, name):
    refused = client.post(path, json=GOOD[path] | {name: "x"})

    assert (refused.status_code, refused.json["error"]["code"]) == (400, "unknown_parameter")
    assert refused.json["error"]["param"] == name


@pytest.mark.parametrize("path", GOOD)
def test_a_body_over_the_limit_is_413(client, path):
    refused = client.post(path, data=b'{"prompt":"' + b"\n" * 100_000 + b'"}', headers=JSON)

    assert (refused.status_code, refused.json["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", GOOD)
def test_a_body_of_another_type_is_415(client, path):
    refused = client.post(path, data=json.dumps(GOOD[path]), content_type="text/plain")

    assert refused.status_code == 415


@pytest.mark.parametrize("path", GOOD)
def test_a_prompt_too_long_is_told_with_both_numbers(client, path):
    (name,) = GOOD[path].keys() & {"messages", "prompt", "input"}
    long = "x" * 600
    value = [{"role": "user", "content": long}] if name == "messages" else long

    error = client.post(path, json=GOOD[path] | {name: value}).json["error"]

    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]


@pytest.mark.parametrize(
    ("path", "name", "form"),
    [
        (CHAT, "response_format", {"json_schema": {"name": "a", "schema": {"type": "objct"}}}),
        (CHAT, "response_format", {"json_schema": {"name": "a", "schema": {"pattern": "("}}}),
        (RESPONSES, "text.format", {"name": "a", "schema": {"$ref": "#"}}),
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_400_and_the_next_request_is_served(
    client, path, name, form
):
    asked = {"type": "json_schema"} | form
    field = {"response_format": asked} if path == CHAT else {"text": {"format": asked}}

    error = client.post(path, json=GOOD[path] | field).json["error"]

    assert (error["code"], error["param"]) == ("invalid_request", name)
    assert client.post(RESPONSES, json=GOOD[RESPONSES]).status_code == 200


def test_a_full_queue_is_503_with_a_time_to_come_again(settings):
    api = create_api(settings.model_copy(update={"max_queued_jobs": 1}))
    client = api.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = "Bearer " + settings.api_key.get_secret_value()
    client.post(RESPONSES, json=GOOD[RESPONSES])

    refused = client.post(RESPONSES, json=GOOD[RESPONSES])

    assert (refused.status_code, json.loads(refused.data)["error"]["code"]) == (503, "queue_full")
    assert 0 < int(refused.headers["Retry-After"]) <= 120
    api.close()


def test_a_repeat_that_its_client_marks_gets_the_first_response(client):
    first = client.post(RESPONSES, json=GOOD[RESPONSES], headers={"x-stainless-retry-count": "0"})

    again = client.post(RESPONSES, json=GOOD[RESPONSES], headers={"x-stainless-retry-count": "1"})

    assert again.json["id"] == first.json["id"]


@pytest.mark.parametrize(
    "query",
    [
        "?stream=true&starting_after=x",
        "?stream=maybe",
        "?x=1",
        "?include_obfuscation=true",
        "?include[]=message.output_text.logprobs",
        "?include[]=reasoning.encrypted_content",
        "?include=message.output_text.logprobs",
    ],
)
def test_a_query_out_of_shape_is_400(client, query):
    made = client.post(RESPONSES, json=GOOD[RESPONSES] | {"stream": True})

    refused = client.get(f"/v1/responses/{made_id(made)}{query}")

    assert refused.status_code == 400


def made_id(answer):
    return json.loads(next(answer.iter_encoded()).decode().partition("data: ")[2])["response"]["id"]
