"""Refusals as the unmodified client raises them, and how often it asks again."""

import httpx
import openai
import pytest

from tests.support.jobs import MODEL
from tests.support.live_stack import API_KEY, CONTEXT

HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
def counted(live):
    """Return a client and the list of the requests that it sent."""
    sent: list[str] = []
    http = openai.DefaultHttpxClient(event_hooks={"request": [lambda r: sent.append(r.method)]})
    with live.client(http_client=http, timeout=20) as client:
        yield client, sent


def ask(client, **changes):
    asked = {"model": MODEL, "messages": [HELLO], "max_tokens": 1, "temperature": 0}
    return client.chat.completions.create(**{**asked, **changes})


def test_a_wrong_key_is_an_authentication_error(live):
    with live.client() as client, pytest.raises(openai.AuthenticationError) as caught:
        ask(client.copy(api_key="wrong"))

    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": []}, "stop"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"extra_body": {"chat_template": "x"}}, "chat_template"),
        ({"response_format": {"type": "json_object"}, "stop": "}"}, "stop"),
    ],
)
def test_a_bad_parameter_is_named_and_not_asked_for_again(counted, changes, param):
    client, sent = counted

    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **changes)

    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert len(sent) == 1


@pytest.mark.parametrize(
    "prompt",
    ["", [""], [], [[]], [0, 999_999_999], [-1], [1.5], ["a", "b"], [[1], "a"], [True], [None]],
)
def test_a_prompt_out_of_shape_names_the_prompt(live, prompt):
    with live.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=4)

    assert str(caught.value.param).startswith("prompt")


def test_a_prompt_too_long_is_told_with_both_numbers(counted):
    client, sent = counted

    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "x" * 2 * CONTEXT}])

    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT) in caught.value.message
    assert len(sent) == 1


def test_an_unknown_model_is_not_found(counted):
    client, sent = counted

    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, model="../etc/passwd")

    assert caught.value.code == "model_not_found"
    assert len(sent) == 1


@pytest.mark.parametrize("response_id", ["resp_0123456789abcdefghijkl", "resp_x", "job_1"])
def test_an_unknown_response_is_not_found(live, response_id):
    with live.client() as client, pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response_id)


def test_a_request_id_of_the_caller_comes_back(live):
    answer = httpx.post(
        f"{live.api.url}/v1/chat/completions",
        headers={"Authorization": f"Bearer {API_KEY}", "x-request-id": "mine-7"},
        json={"model": MODEL, "messages": [HELLO], "max_tokens": 0},
    )

    assert answer.headers["x-request-id"] == "mine-7"
    assert answer.json()["request_id"] == "mine-7"
