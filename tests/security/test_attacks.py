"""Attack by attack: what is sent, and the right answer. Rows that have a file of their own: tenants
(test_tenant_matrix), keys (test_bad_keys), slow clients (test_slow_clients), Redis users
(test_redis_users), leaks (test_canary); webhooks and batch files have theirs beside their code.
"""

import json
import random

import pytest

from api.app import create_api
from ops.settings import Settings
from tests.api.conftest import API_KEY

HUGE = 10**9
NUMBERS = {
    "max_tokens": [HUGE, -1, 0, 1.5, True, "16", [], 2**63, -(2**63)],
    "temperature": [-0.1, 2.1, "1", True, []],
    "top_p": [0, 1.1, "x"],
    "top_k": [-1, 1.5, HUGE],
    "seed": [2**63, -(2**63) - 1, "1", 1.5],
    "stop": [[], [""], "", ["a"] * 5, ["x"] * 100_000, [1], "x" * 20_000],
    "deadline_s": [0, -1, HUGE, "1", True],
    "priority": ["urgent", 1, ""],
    "metadata": [{str(n): "x" for n in range(17)}, {"k": "v" * 513}, {"k" * 65: "v"}, {"k": 1}, []],
    "webhook_url": ["http://x.test/", "file:///etc/passwd", "gopher://x", "//x", "", 1],
    "messages": [[], [{}], [{"role": "root", "content": "x"}], "x"],
    "prompt": ["", [], 1, ["a"], [1.5], [-1]],
}
CHAT_NUMBERS = {
    "n": [10**6, -1, 0, True, "1"],
    "logit_bias": [{str(n): 1 for n in range(10**5)}, {"x": 1}, {"1": 101}, []],
    "chat_template": ["{{ 1 }}"],
    "chat_template_kwargs": [{"chat_template": "{{ 1 }}"}],
    "top_logprobs": [21, -1, True],
    "frequency_penalty": [2.1, -2.1, "0"],
}
UNREADABLE = {
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a long integer": b'{"prompt":"x","seed":' + b"1" * 5_000 + b"}",
    "a number beyond all": b'{"prompt":"x","temperature":1e999}',
    "NaN": b'{"prompt":"x","temperature":NaN}',
    "Infinity": b'{"prompt":"x","temperature":-Infinity}',
    "a key twice": b'{"prompt":"x","prompt":"y"}',
    "a byte order mark": b'\xef\xbb\xbf{"prompt":"x"}',
    "UTF-16": '{"prompt":"x"}'.encode("utf-16"),
    "no UTF-8": b'{"prompt":"\xff"}',
    "half a pair": b'{"prompt":"\\ud800"}',
    "the other half": b'{"prompt":"\\udfff"}',
    "a pair the wrong way round": b'{"prompt":"\\udc00\\ud800"}',
    "nothing": b"",
    "no object": b'"prompt"',
    "half an object": b'{"prompt":',
    "more than an object": b'{"prompt":"x"}{}',
}


@pytest.fixture(scope="module")
def api(module_redis_url, tiny_folder, tmp_path_factory):
    """Return one API for all attacks: what is refused leaves nothing."""
    settings = {
        "redis_url": module_redis_url,
        "models": [tiny_folder],
        "data_dir": tmp_path_factory.mktemp("data"),
        "api_key": API_KEY,
        "max_body_bytes": 65_536,
    }
    api = create_api(Settings.model_validate(settings))
    yield api
    api.close()


@pytest.fixture(scope="module")
def client(api):
    client = api.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {API_KEY}"
    return client


def values_of(table):
    return [(name, value) for name, values in table.items() for value in values]


def named(value):
    return json.dumps(value)[:24]


def assert_refused(answer, status, code=None, param=None):
    error = answer.json["error"]
    assert answer.status_code == status, answer.text[:300]
    assert code is None or error["code"] == code
    assert param is None or error["param"].split("[")[0].split(".")[0] == param


@pytest.mark.parametrize(("name", "value"), values_of(NUMBERS), ids=named)
def test_a_value_out_of_range_is_refused_by_name(client, name, value):
    body = {"prompt": "x"} | {name: value}

    answer = client.post("/v1/jobs", json=body)

    assert answer.status_code == 413 or answer.json["error"]["param"] is not None
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize(("name", "value"), values_of(CHAT_NUMBERS), ids=named)
def test_so_it_is_for_openais_clients(client, name, value):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]} | {name: value}

    answer = client.post("/v1/chat/completions", json=body)

    assert answer.status_code in (400, 413)
    assert answer.status_code == 413 or answer.json["error"]["param"].startswith(name)


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/chat/completions", "/v1/responses"])
def test_what_can_be_read_in_two_ways_or_none_is_400(client, path, data):
    answer = client.post(path, data=data, content_type="application/json")

    # So deep a body may be larger than any body may be.
    assert answer.status_code in (400, 413)
    assert answer.json["error"]["code"] in (
        "invalid_json",
        "invalid_request",
        "request_too_large",
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {"Content-Type": "application/json", "Content-Encoding": "br"},
    ],
    ids=str,
)
def test_another_type_or_a_compressed_body_is_415(client, headers):
    answer = client.post("/v1/jobs", data=b'{"prompt":"x"}', headers=headers)

    assert_refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "model", ["../x", "org/../../x", "/etc/passwd", "http://x", "tiny/", "TINY", "tiny\u0000", "x"]
)
def test_a_model_is_looked_up_and_never_a_path(client, model):
    answer = client.post("/v1/jobs", json={"prompt": "x", "model": model})

    assert_refused(answer, 404, "model_not_found", "model")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/job_",
        "/v1/jobs/job_0000000000000000000000%00",
        "/v1/jobs/job_0000000000000000000000%0d%0a",
        "/v1/jobs/..%2f..%2fetc%2fpasswd",
        "/v1/jobs/job_000000000000000000000*",
        "/v1/files/file-0000000000000000000000/../content",
        "//v1/jobs",
        "/v1/jobs/",
        "/v1//jobs",
        "/.git/config",
    ],
)
def test_an_address_that_is_none_is_404(client, path):
    assert_refused(client.get(path), 404, "not_found")


@pytest.mark.parametrize(
    "sent", ["a\r\nX-Evil: 1", "a b", "\u00e9", "x" * 129, "", "<script>", "a\x1b[31m", "-a"]
)
def test_a_request_id_out_of_shape_is_replaced(api, sent):
    environ = {"HTTP_X_REQUEST_ID": sent, "HTTP_AUTHORIZATION": "Bearer pm_test-key"}

    answer = api.app.test_client().get("/v1/models", environ_overrides=environ)

    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("key", ["", " ", "a b", "a\r\nb", "\u00e9", "x" * 256, "a\u0000b", "a\tb"])
def test_an_idempotency_key_out_of_shape_is_refused(api, key):
    environ = {"HTTP_IDEMPOTENCY_KEY": key, "HTTP_AUTHORIZATION": "Bearer pm_test-key"}

    answer = api.app.test_client().post("/v1/jobs", json={"prompt": "x"}, environ_overrides=environ)

    assert_refused(answer, 400, "invalid_request", "Idempotency-Key")


def test_a_form_of_many_parts_is_413_or_400(client):
    parts = {f"field{number}": "x" for number in range(2_000)}

    answer = client.post("/v1/files", data=parts, content_type="multipart/form-data")

    assert answer.status_code in (400, 413)


def test_a_huge_field_of_a_form_is_413(client):
    answer = client.post(
        "/v1/files", data={"purpose": "x" * 300_000}, content_type="multipart/form-data"
    )

    assert answer.status_code == 413


def test_no_answer_quotes_what_was_sent(client):
    marker = f"marker{random.randbytes(8).hex()}"
    bodies = [
        {"prompt": marker * 100},
        {"prompt": "x", "priority": marker},
        {"prompt": "x", "model": marker},
        {"prompt": "x", "webhook_url": f"ftp://{marker}/"},
        {"messages": [{"role": marker, "content": marker}]},
        {"prompt": marker, "max_tokens": -1},
    ]

    answers = [client.post("/v1/jobs", json=body) for body in bodies]

    assert {answer.status_code // 100 for answer in answers} == {4}
    assert [answer.text for answer in answers if marker in answer.text] == []
    assert [answer.text for answer in answers if "Traceback" in answer.text] == []
