import json

import pytest

from queueing.errors import FailureCode, RequestError
from queueing.job import Priority
from queueing.openai_response import LOGPROBS, parse_response_call, size_response
from queueing.openai_sampling import priority_of
from queueing.served_model import ServedModel, ServedModels
from tests.queueing.test_openai_chat import LetterEncoder, OnlyObjects

BODY = {"model": "m", "input": "hi"}
EVERYTHING = frozenset(Priority)


@pytest.fixture
def models():
    return ServedModels([ServedModel("m", 40, 8, LetterEncoder(), OnlyObjects())])


def refused(body):
    with pytest.raises(RequestError) as caught:
        parse_response_call(body)
    return caught.value.code, caught.value.param


def test_a_text_is_what_the_user_says(models):
    request = size_response(
        parse_response_call(BODY | {"instructions": "be brief"}), models
    ).request

    assert request.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    )
    assert (request.temperature, request.top_p, request.max_tokens) == (1.0, 1.0, 8)


def test_messages_may_be_made_of_parts_of_both_kinds(models):
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    said = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}],
    }
    asked = [{"role": "developer", "content": parts}, said, {"role": "user", "content": "go"}]

    request = size_response(parse_response_call(BODY | {"input": asked}), models).request

    assert request.messages == (
        {"role": "system", "content": "one\ntwo"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "go"},
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "web_search"}]),
        ("tool_choice", "required"),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("reasoning", {"effort": "high"}),
        ("truncation", "auto"),
        ("prompt", {"id": "p"}),
        ("max_tool_calls", 1),
    ],
)
def test_what_is_not_served_is_refused_by_name(name, value):
    assert refused(BODY | {name: value}) == (FailureCode.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "role": "user", "content": ""}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True, "store": False}, "store"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"include": [LOGPROBS], "top_logprobs": 21}, "top_logprobs"),
        ({"include": [LOGPROBS], "top_logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": [], "top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_is_out_of_shape_is_refused_by_name(changes, param):
    code, refused_param = refused(BODY | changes)

    assert code in (FailureCode.INVALID_REQUEST, FailureCode.UNSUPPORTED_PARAMETER)
    assert refused_param == param or param is None


@pytest.mark.parametrize(
    ("asked", "num_logprobs"),
    [
        ({}, None),
        ({"include": None, "top_logprobs": None}, None),
        ({"include": [], "top_logprobs": 0}, None),
        ({"include": [LOGPROBS]}, 0),
        ({"include": [LOGPROBS], "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_are_asked_for_by_what_is_to_be_included(models, asked, num_logprobs):
    sized = size_response(parse_response_call(BODY | asked), models)

    assert sized.request.num_logprobs == num_logprobs


def test_a_format_becomes_the_schema_to_keep_to(models):
    form = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}

    request = size_response(parse_response_call(BODY | {"text": {"format": form}}), models).request

    assert request.schema is not None
    assert json.loads(request.schema) == {"type": "object"}
    assert request.extra["response"]["text"] == {"format": form}


@pytest.mark.parametrize(
    ("tier", "allowed", "priority"),
    [
        (None, EVERYTHING, Priority.REALTIME),
        ("default", EVERYTHING, Priority.REALTIME),
        ("flex", EVERYTHING, Priority.STANDARD),
        ("auto", {Priority.STANDARD, Priority.BULK}, Priority.STANDARD),
        ("flex", {Priority.REALTIME, Priority.BULK}, Priority.BULK),
        # Asked for by name, it is refused where the job is submitted.
        ("priority", {Priority.BULK}, Priority.REALTIME),
    ],
)
def test_a_tier_becomes_the_most_urgent_priority_that_is_allowed(tier, allowed, priority):
    assert priority_of(tier, allowed) is priority
