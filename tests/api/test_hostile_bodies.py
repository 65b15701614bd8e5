"""Bodies that break parsers, ranges and types: one request's 400 each, and the next is served."""

import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

JSON = {"Content-Type": "application/json"}

NOT_JSON = {
    "nothing": b"",
    "a word": b"hello",
    "half an object": b'{"prompt":"a"',
    "two objects": b'{"prompt":"a"}{"prompt":"b"}',
    "a comment": b'{"prompt":"a"/**/}',
    "a trailing comma": b'{"prompt":"a",}',
    "single quotes": b"{'prompt':'a'}",
    "NaN": b'{"prompt":"a","temperature":NaN}',
    "an infinity": b'{"prompt":"a","temperature":-Infinity}',
    "a float beyond all": b'{"prompt":"a","temperature":1e999}',
    "an integer of 5,000 digits": b'{"prompt":"a","seed":' + b"9" * 5000 + b"}",
    "a key twice": b'{"prompt":"a","prompt":"b"}',
    "a key twice inside": b'{"prompt":"a","metadata":{"k":"1","k":"2"}}',
    "open brackets": b"[" * 60_000,
    "open braces": b'{"a":' * 10_000,
    "deep arrays": b'{"prompt":"a","stop":' + b"[" * 65 + b"]" * 65 + b"}",
    "deep objects": b'{"a":' * 900 + b"1" + b"}" * 900,
    "a lone high surrogate": b'{"prompt":"x\\ud800y"}',
    "a lone low surrogate": b'{"prompt":"\\udfff"}',
    "a reversed pair": b'{"prompt":"\\udc00\\ud800"}',
    "a surrogate in a key": b'{"\\ud800":1}',
    "a surrogate in metadata": b'{"prompt":"a","metadata":{"\\udead":"x"}}',
    "an encoded surrogate": b'{"prompt":"\xed\xa0\x80"}',
    "no UTF-8": b'{"prompt":"\xff"}',
    "an overlong slash": b'{"prompt":"\xc0\xaf"}',
    "a byte order mark": b'\xef\xbb\xbf{"prompt":"a"}',
    "UTF-16": '{"prompt":"a"}'.encode("utf-16"),
    "UTF-16 without a mark": '{"prompt":"a"}'.encode("utf-16-le"),
    "UTF-32": '{"prompt":"a"}'.encode("utf-32"),
    "a raw line end in a string": b'{"prompt":"a\nb"}',
    "a NUL byte": b'{"prompt":"a"}\x00',
}

WRONG: dict[str, list[object]] = {
    "max_tokens": [0, -5, 10**12, 2**63, 1e3, 1.5, "10", True, [], {}],
    "temperature": [-0.1, 2.1, "1", True, None, []],
    "top_p": [0, -1, 1.01, "1", False],
    "top_k": [-1, 1.0, "5", True, 2**40],
    "seed": [2**63, -(2**63) - 1, 1.0, "1", True],
    "stop": ["", [], [""], ["a"] * 5, [1], 5, {"a": 1}, ["a", None], "x" * 16_385],
    "ignore_eos": [1, "true", None],
    "priority": ["urgent", "", 0, None, "REALTIME", ["bulk"]],
    "must_meet_deadline": [1, "true", None, True],
    "deadline_s": [0, -1, 10**9, "60", True, []],
    "metadata": [
        "x",
        [],
        {"k": 1},
        {"": "v"},
        {"k" * 65: "v"},
        {"k": "v" * 513},
        {str(number): "v" for number in range(17)},
        {"k": None},
    ],
    "model": [5, True, ["tiny"], "x" * 257],
    "prompt": ["", 5, ["a"], [1, 2], [[]], {"text": "a"}, True],
    "webhook_url": ["", "x", 5, "ftp://example.com/", "https://example.com:22/"],
}

WRONG_MESSAGES: dict[str, list[object]] = {
    "messages": [[], "hi", {}, {"role": "user", "content": "a"}],
    "messages[0]": [["hi"], [5], [None]],
    "messages[0].role": [
        [{"content": "a"}],
        [{"role": "tool", "content": "a"}],
        [{"role": 5, "content": "a"}],
    ],
    "messages[0].content": [
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": []}],
    ],
    "messages[0].content[0].type": [
        [{"role": "user", "content": [{"type": "image_url", "text": "a"}]}]
    ],
    "messages[0].content[0].text": [[{"role": "user", "content": [{"type": "text"}]}]],
}


@pytest.mark.parametrize("data", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_strict_json_is_400_invalid_json(client, data):
    answer = client.post("/v1/jobs", data=data, headers=JSON)

    assert answer.status_code == 400
    assert answer.json["error"]["code"] == "invalid_json"
    assert client.post("/v1/jobs", json={"prompt": "next"}).status_code == 202


@pytest.mark.parametrize("data", [b"5", b'"a"', b"null", b"[]", b"true", b'[{"prompt":"a"}]'])
def test_json_that_is_no_object_is_400(client, data):
    answer = client.post("/v1/jobs", data=data, headers=JSON)

    assert answer.status_code == 400
    assert answer.json["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_value_out_of_range_or_type_is_400_naming_the_field(client, name, value):
    answer = client.post("/v1/jobs", json={"prompt": "a"} | {name: value})

    error = answer.json["error"]
    assert answer.status_code == 400
    assert error["param"].partition(".")[0].partition("[")[0] == name
    assert error["message"]


@pytest.mark.parametrize(
    ("param", "messages"),
    [(param, messages) for param, rows in WRONG_MESSAGES.items() for messages in rows],
)
def test_messages_out_of_shape_are_400_naming_the_place(client, param, messages):
    answer = client.post("/v1/jobs", json={"messages": messages})

    assert answer.status_code == 400
    assert answer.json["error"]["param"] == param


def test_null_is_the_same_as_leaving_a_field_out(client):
    names = ["messages", "model", "max_tokens", "seed", "stop", "deadline_s", "webhook_url"]

    answer = client.post("/v1/jobs", json={"prompt": "a"} | dict.fromkeys([*names, "metadata"]))

    assert answer.status_code == 202
    messages = [{"role": "user", "content": "a"}]
    assert client.post("/v1/jobs", json={"prompt": None, "messages": messages}).status_code == 202


def test_prompt_and_messages_exclude_each_other(client):
    messages = [{"role": "user", "content": "a"}]

    neither = client.post("/v1/jobs", json={})
    both = client.post("/v1/jobs", json={"prompt": "a", "messages": messages})

    assert [neither.status_code, both.status_code] == [400, 400]
    assert neither.json["error"]["param"] == both.json["error"]["param"] == "prompt"


@pytest.mark.parametrize("name", ["tenant_id", "tenant", "chat_template", "id", "Prompt", "x" * 99])
def test_an_unknown_field_is_400_naming_it(client, name):
    answer = client.post("/v1/jobs", json={"prompt": "a", name: "x"})

    assert answer.status_code == 400
    assert answer.json["error"]["code"] == "unknown_parameter"
    assert answer.json["error"]["param"] == name[:64]


@pytest.mark.parametrize(
    "text", ["\u0000", "e\u0301", "\U0001f468\u200d\U0001f469", "\u202e", "<|end|>", "\ufeff"]
)
def test_unusual_text_is_kept_as_it_is(client, queue, text):
    client.post("/v1/jobs", json={"prompt": text, "stop": text, "metadata": {text: text}})

    (claim,) = queue.claim("generate.tiny", "worker", 1)
    request = json.loads(claim.request)

    assert (request["prompt"], request["stop"]) == (text, [text])


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
field_names = st.sampled_from([*WRONG, "messages", "role", "content"])


@hypothesis_settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(fields=st.dictionaries(field_names | st.text(), any_json, max_size=3))
def test_no_fields_make_the_server_fail(client, fields):
    answer = client.post("/v1/jobs", data=json.dumps({"prompt": "a"} | fields), headers=JSON)

    assert answer.status_code in (202, 400, 404)


@hypothesis_settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.binary(max_size=200) | any_json.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_make_the_server_fail(client, data):
    answer = client.post("/v1/jobs", data=data, headers=JSON)

    assert answer.status_code == 400
