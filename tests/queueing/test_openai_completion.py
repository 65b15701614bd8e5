import pytest

from queueing.errors import FailureCode, RequestError
from queueing.job import Choice, JobResult, JobState, Usage
from queueing.openai_completion import parse_completion_call, size_completion, text_completion
from queueing.served_model import ServedModel, ServedModels
from tests.queueing.test_openai_chat import LetterEncoder

BODY = {"model": "m", "prompt": "hello"}


@pytest.fixture
def models():
    return ServedModels([ServedModel("m", 20, 8, LetterEncoder())])


def refused(body, models):
    with pytest.raises(RequestError) as caught:
        size_completion(parse_completion_call(body), models)
    return caught.value.code, caught.value.param


def test_a_text_becomes_a_prompt(models):
    sized = size_completion(parse_completion_call(BODY), models)

    request = sized.request
    assert (request.prompt, request.prompt_ids, request.messages) == ("hello", None, None)
    assert (request.temperature, request.num_logprobs) == (1.0, None)
    assert (sized.num_prompt_tokens, request.max_tokens) == (5, 8)


def test_token_ids_become_a_prompt_as_they_are(models):
    sized = size_completion(parse_completion_call(BODY | {"prompt": [7, 255]}), models)

    assert (sized.request.prompt, sized.request.prompt_ids) == (None, (7, 255))
    assert sized.num_prompt_tokens == 2


@pytest.mark.parametrize("prompt", ["hello", [7]])
def test_a_list_of_one_prompt_is_that_prompt(models, prompt):
    one = size_completion(parse_completion_call(BODY | {"prompt": prompt}), models)

    assert size_completion(parse_completion_call(BODY | {"prompt": [prompt]}), models) == one


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([""], "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        (None, "prompt"),
        (7, "prompt"),
        ([-1], "prompt[0]"),
        ([0, 1.5], "prompt[1]"),
        ([0, True], "prompt[1]"),
        ([0, 256], "prompt[1]"),
        ([0, 999_999_999], "prompt[1]"),
        ([0, 2**63], "prompt[1]"),
        ([[1], "a"], "prompt"),
        (["a", "b"], "prompt"),
        ([[1], [2]], "prompt"),
        ("x" * 21, None),
    ],
)
def test_a_prompt_out_of_shape_names_what_is_wrong(models, prompt, param):
    _, refused_param = refused(BODY | {"prompt": prompt}, models)

    assert refused_param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [("echo", True), ("suffix", "x"), ("best_of", 2)],
)
def test_what_is_not_served_is_refused_by_name(models, name, value):
    assert refused(BODY | {name: value}, models) == (FailureCode.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize("logprobs", [-1, 6, True, "2"])
def test_log_probabilities_are_asked_for_by_a_number_up_to_five(models, logprobs):
    assert refused(BODY | {"logprobs": logprobs}, models)[1] == "logprobs"


def test_an_answer_has_the_shape_of_a_text_completion():
    told = [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []},
        {
            "token": "!",
            "logprob": -1.5,
            "bytes": [33],
            "top_logprobs": [{"token": "?", "logprob": -2.0, "bytes": [63]}],
        },
    ]
    choice = Choice(0, "é!", "stop", {"content": told, "refusal": None})
    result = JobResult(JobState.COMPLETED, (choice,), usage=Usage(5, 2, 1), model="m")

    completion = text_completion("cmpl-0123456789ABCDEFGHIJKL", result, 1_700_000_000)

    assert completion == {
        "id": "cmpl-0123456789ABCDEFGHIJKL",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "é!",
                "finish_reason": "stop",
                "logprobs": {
                    "tokens": ["é", "!"],
                    "token_logprobs": [-0.5, -1.5],
                    "top_logprobs": [{}, {"?": -2.0}],
                    "text_offset": [0, 1],
                },
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
