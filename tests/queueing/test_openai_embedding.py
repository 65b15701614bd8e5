"""Bodies of embeddings: what is served, what is refused by name, and the shape of the answer."""

import struct
from base64 import b64decode, b64encode

import pytest

from queueing.errors import FailureCode, RequestError
from queueing.job import JobResult, JobState, Usage
from queueing.openai_embedding import (
    MAX_INPUTS,
    embedding_list,
    parse_embedding_call,
    size_embeddings,
)
from queueing.served_model import ServedModel, ServedModels
from tests.support.fake_engine import byte_tokenizer

MODELS = ServedModels([ServedModel("m", 16, 8, byte_tokenizer())])


def sized(**body):
    return size_embeddings(parse_embedding_call({"model": "m", **body}), MODELS)


def refusal(**body):
    with pytest.raises(RequestError) as caught:
        sized(**body)
    return caught.value


@pytest.mark.parametrize(
    ("given", "prompts", "ids"),
    [
        ("hello", ["hello"], [None]),
        (["hello", "you"], ["hello", "you"], [None, None]),
        ([1, 2, 3], [None], [(1, 2, 3)]),
        ([[1, 2], [3]], [None, None], [(1, 2), (3,)]),
    ],
)
def test_each_input_is_a_request_of_its_own(given, prompts, ids):
    requests = [one.request for one in sized(input=given)]

    assert [request.prompt for request in requests] == prompts
    assert [request.prompt_ids for request in requests] == ids


def test_an_input_costs_the_tokens_it_is_read_as_and_none_to_make():
    assert [one.cost for one in sized(input=["hello", "you"])] == [5, 3]


@pytest.mark.parametrize(
    "given",
    [
        "",
        [],
        [[]],
        ["a", ""],
        ["a", 1],
        [1, "a"],
        [True],
        [[1], "a"],
        [-1],
        [1.5],
        None,
        7,
        {"a": 1},
        ["a"] * (MAX_INPUTS + 1),
    ],
)
def test_what_is_no_input_is_refused_by_name(given):
    error = refusal(input=given)

    assert error.code is FailureCode.INVALID_REQUEST
    assert error.param.startswith("input")


@pytest.mark.parametrize(
    ("given", "param"), [([1, 256], "input[1]"), ([[1], [2, 256]], "input[1][1]")]
)
def test_a_token_that_the_model_does_not_have_is_named(given, param):
    assert refusal(input=given).param == param


@pytest.mark.parametrize(
    ("given", "param"), [("x" * 17, "input"), (["a", "x" * 17], "input[1]"), ([1] * 17, "input")]
)
def test_an_input_longer_than_the_context_is_refused_with_both_numbers(given, param):
    error = refusal(input=given)

    assert (error.code, error.param) == (FailureCode.CONTEXT_LENGTH_EXCEEDED, param)
    assert "16" in error.message
    assert "17" in error.message


def test_an_input_may_fill_the_context():
    assert sized(input="x" * 16)[0].num_prompt_tokens == 16


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("dimensions", 8, FailureCode.UNSUPPORTED_PARAMETER),
        ("encoding_format", "int8", FailureCode.INVALID_REQUEST),
        ("temperature", 1, FailureCode.UNKNOWN_PARAMETER),
    ],
)
def test_what_is_not_served_is_refused_by_name(name, value, code):
    error = refusal(input="a", **{name: value})

    assert (error.code, error.param) == (code, name)


def test_null_asks_for_nothing():
    assert sized(input="a", dimensions=None, encoding_format=None, user=None)


def a_result(*numbers, num_tokens=3):
    vector = b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    return JobResult(JobState.COMPLETED, vector=vector, usage=Usage(num_tokens, 0), model="m")


def test_an_answer_has_the_vectors_in_order_and_the_tokens_together():
    answer = embedding_list([a_result(0.5, -0.25), a_result(1.0, 0.0, num_tokens=4)], None)

    assert answer == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -0.25]},
            {"object": "embedding", "index": 1, "embedding": [1.0, 0.0]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_decimals_and_base64_are_the_same_float32_numbers():
    result = a_result(0.1, 1 / 3, -2e-20, 3e-39)

    decimals = embedding_list([result], "float")["data"][0]["embedding"]
    encoded = embedding_list([result], "base64")["data"][0]["embedding"]

    assert struct.pack("<4f", *decimals) == b64decode(encoded)
