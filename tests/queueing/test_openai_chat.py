import json

import pytest

from queueing.errors import FailureCode, RequestError
from queueing.job import Choice, JobResult, JobState, Usage
from queueing.openai_chat import chat_completion, parse_chat_line, size_chat
from queueing.served_model import ServedModel, ServedModels

MESSAGES = [{"role": "user", "content": "hi"}]
BODY = {"model": "m", "messages": MESSAGES}


class LetterEncoder:
    """One token a letter, and one more for each message."""

    vocab_size = 256

    def encode(self, text):
        return list(range(len(text)))

    def encode_chat(self, messages):
        if messages[-1]["role"] != "user":
            raise ValueError("the last word must be the user's")
        return list(range(sum(len(message["content"]) + 1 for message in messages)))


class OnlyObjects:
    """Keeps to any schema whose type is spelled right."""

    def check(self, schema):
        if json.loads(schema)["type"] not in ("object", "integer"):
            raise ValueError("no such type")


@pytest.fixture
def models():
    return ServedModels([ServedModel("m", 20, 8, LetterEncoder())])


def refused(body):
    with pytest.raises(RequestError) as caught:
        parse_chat_line(body)
    return caught.value.code, caught.value.param


def test_a_plain_chat_becomes_a_request_with_the_defaults_of_openai(models):
    sized = size_chat(parse_chat_line(BODY), models)

    request = sized.request
    assert (request.model, request.prompt, request.messages) == ("m", None, tuple(MESSAGES))
    assert (request.temperature, request.top_p, request.top_k) == (1.0, 1.0, 0)
    assert (request.seed, request.stop, request.ignore_eos) == (None, (), False)
    assert (sized.num_prompt_tokens, request.max_tokens, sized.cost) == (3, 8, 11)


def test_everything_that_is_served_reaches_the_request(models):
    body = BODY | {
        "max_tokens": 5,
        "max_completion_tokens": 6,
        "temperature": 0,
        "top_p": 0.5,
        "stop": ["a", "b"],
        "seed": 7,
        "user": "somebody",
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "n": 1,
        "stream": False,
    }

    request = size_chat(parse_chat_line(body), models).request

    assert (request.max_tokens, request.temperature, request.top_p) == (6, 0, 0.5)
    assert (request.stop, request.seed) == (("a", "b"), 7)


def test_null_is_the_same_as_leaving_a_parameter_out():
    nulls = dict.fromkeys(
        ["max_tokens", "temperature", "stop", "seed", "tools", "n", "logprobs", "metadata"]
    )

    assert parse_chat_line(BODY | nulls) == parse_chat_line(BODY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", True),
        ("stream", 0),
        ("tools", [{}]),
        ("tool_choice", "required"),
        ("reasoning_effort", "high"),
        ("stream_options", {"include_usage": True}),
        ("store", True),
        ("modalities", ["audio"]),
        ("web_search_options", {}),
    ],
)
def test_what_is_not_served_is_refused_by_name(name, value):
    assert refused(BODY | {name: value}) == (FailureCode.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", False),
        ("tools", []),
    ],
)
def test_a_value_that_asks_for_nothing_is_taken(name, value):
    assert parse_chat_line(BODY | {name: value}) == parse_chat_line(BODY)


def a_schema(definition):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": definition}}


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        (a_schema({"type": "integer"}), {"type": "integer"}),
    ],
)
def test_a_response_format_becomes_the_schema_to_keep_to(form, schema):
    models = ServedModels([ServedModel("m", 20, 8, LetterEncoder(), OnlyObjects())])

    request = size_chat(parse_chat_line(BODY | {"response_format": form}), models).request

    assert (None if request.schema is None else json.loads(request.schema)) == schema


def test_a_schema_that_the_model_cannot_keep_to_is_refused():
    models = ServedModels([ServedModel("m", 20, 8, LetterEncoder(), OnlyObjects())])
    chat = parse_chat_line(BODY | {"response_format": a_schema({"type": "objct"})})

    with pytest.raises(RequestError) as caught:
        size_chat(chat, models)

    assert caught.value.code is FailureCode.INVALID_REQUEST
    assert caught.value.param == "response_format"


def test_without_a_compiler_of_schemas_a_response_format_is_refused_by_name(models):
    chat = parse_chat_line(BODY | {"response_format": {"type": "json_object"}})

    with pytest.raises(RequestError) as caught:
        size_chat(chat, models)

    assert caught.value.code is FailureCode.UNSUPPORTED_PARAMETER


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "regex"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema"),
        ({"type": "json_object", "json_schema": {"name": "a", "schema": {}}}, None),
        (a_schema([]), "response_format.json_schema.schema"),
        (a_schema({}) | {"x": 1}, "response_format.x"),
    ],
)
def test_a_response_format_out_of_shape_is_refused(form, param):
    code, refused_param = refused(BODY | {"response_format": form})

    assert code in (FailureCode.INVALID_REQUEST, FailureCode.UNKNOWN_PARAMETER)
    assert refused_param == param or param is None


def test_stop_strings_do_not_go_with_a_schema():
    body = BODY | {"response_format": {"type": "json_object"}, "stop": "}"}

    assert refused(body) == (FailureCode.UNSUPPORTED_PARAMETER, "stop")


def test_what_shapes_the_draw_reaches_the_request(models):
    body = BODY | {
        "n": 3,
        "presence_penalty": -1,
        "frequency_penalty": 0.5,
        "logit_bias": {"5": -100, "7": 2.5},
        "logprobs": True,
        "top_logprobs": 4,
    }

    sized = size_chat(parse_chat_line(body), models)

    request = sized.request
    assert (request.n, request.presence_penalty, request.frequency_penalty) == (3, -1, 0.5)
    assert (request.logit_bias, request.num_logprobs) == ({"5": -100, "7": 2.5}, 4)
    assert sized.cost == 3 + 3 * 8


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"n": 2.0}, "n"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"-1": 1}}, None),
        ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_shapes_the_draw_is_refused_out_of_its_range(asked, param):
    code, refused_param = refused(BODY | asked)

    assert code is FailureCode.INVALID_REQUEST
    assert refused_param == param or param is None


def test_a_bias_on_a_token_that_the_model_lacks_is_refused(models):
    with pytest.raises(RequestError) as caught:
        size_chat(parse_chat_line(BODY | {"logit_bias": {"256": 1}}), models)

    assert caught.value.param == "logit_bias.256"


@pytest.mark.parametrize("name", ["chat_template", "chat_template_kwargs", "best_of", "x", ""])
def test_what_nobody_knows_is_an_unknown_parameter(name):
    code, _ = refused(BODY | {name: "x"})

    assert code is FailureCode.UNKNOWN_PARAMETER


def test_an_answer_of_the_assistant_can_be_sent_back_as_the_client_holds_it():
    echoed: dict[str, object] = {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
    }

    chat = parse_chat_line(BODY | {"messages": [*MESSAGES, echoed, *MESSAGES]})

    assert chat.messages[1].as_plain() == {"role": "assistant", "content": "hello"}


def test_a_message_that_asks_for_what_is_not_served_is_refused_by_name():
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}

    assert refused(BODY | {"messages": [called]}) == (
        FailureCode.UNSUPPORTED_PARAMETER,
        "tool_calls",
    )


def test_messages_that_the_template_refuses_are_the_callers_fault(models):
    chat = parse_chat_line(BODY | {"messages": [{"role": "assistant", "content": "a"}]})

    with pytest.raises(RequestError) as caught:
        size_chat(chat, models)

    assert (caught.value.code, caught.value.param) == (FailureCode.INVALID_REQUEST, "messages")


def test_a_chat_too_long_is_refused_with_both_numbers(models):
    chat = parse_chat_line(BODY | {"max_tokens": 18})

    with pytest.raises(RequestError, match=r"20 tokens.*has 3.*is 18") as caught:
        size_chat(chat, models)

    assert caught.value.code is FailureCode.CONTEXT_LENGTH_EXCEEDED


def test_a_default_limit_is_cut_to_what_the_context_leaves(models):
    chat = parse_chat_line(BODY | {"messages": [{"role": "user", "content": "x" * 17}]})

    assert size_chat(chat, models).request.max_tokens == 2


def test_a_model_that_is_not_served_is_not_found(models):
    with pytest.raises(RequestError) as caught:
        size_chat(parse_chat_line(BODY | {"model": "other"}), models)

    assert (caught.value.code, caught.value.param) == (FailureCode.MODEL_NOT_FOUND, "model")


def test_a_result_becomes_a_completion_that_openais_own_type_takes():
    from openai.types.chat import ChatCompletion

    result = JobResult(
        state=JobState.COMPLETED,
        choices=(Choice(0, "hello", "stop"),),
        usage=Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1),
    )

    completion = chat_completion("job_0123456789ABCDEFGHIJKL", "m", result, 1_700_000_000)

    read = ChatCompletion.model_validate(completion, strict=True, extra="forbid")
    assert read.id == "chatcmpl-0123456789ABCDEFGHIJKL"
    assert read.choices[0].message.content == "hello"
    assert read.usage is not None
    assert read.usage.total_tokens == 5
    assert read.to_dict(exclude_unset=True) == completion
