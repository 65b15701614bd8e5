"""Every route of the document, asked by a stranger and by another tenant: a new route can't be left
out, since the matrix is made of the document that is kept.
"""

import io
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queueing.job import encode_base62
from queueing.tenants import Tenant, TenantStore

KEPT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in json.loads(KEPT.read_text())["paths"].items()
    for method, operation in methods.items()
]
GUARDED = [found for found in OPERATIONS if found[2].get("security") != []]
BY_ID = [found for found in GUARDED if "{" in found[1] and "{name}" not in found[1]]
LISTS = [
    found for found in GUARDED if any(one["name"] == "after" for one in found[2]["parameters"])
]
BODIES = {"webhooks_test": {"event_type": "job.completed"}}
QUERIES = {"tenant_list_jobs": {"state": "queued"}}


def ids_of(operations):
    return [f"{method} {path}" for method, path, _ in operations]


def matrix(operations):
    return pytest.mark.parametrize(
        ("method", "path", "operation"), operations, ids=ids_of(operations)
    )


@pytest.fixture
def client_of(api):
    tenants = TenantStore(api.client)

    def make(name):
        tenants.put(Tenant(name))
        client = api.app.test_client()
        client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {tenants.create_key(name)[1]}"
        return client

    return make


@pytest.fixture
def owner(client_of):
    return client_of("owner")


@pytest.fixture
def stranger(client_of):
    return client_of("stranger")


@pytest.fixture
def owned(owner):
    """Return one object of the owner's for each path parameter of the document."""
    upload = {"purpose": "batch", "file": (io.BytesIO(b"{}\n"), "lines.jsonl")}
    file_id = owner.post("/v1/files", data=upload).json["id"]
    batch = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    endpoint = {"name": "x", "url": "https://example.com/", "event_types": ["job.cancelled"]}
    endpoint_id = owner.post("/v1/webhook_endpoints", json=endpoint).json["id"]
    ended_id = owner.post("/v1/jobs", json={"prompt": "x"}).json["id"]
    owner.post(f"/v1/jobs/{ended_id}/cancel")
    deliveries = owner.get(f"/v1/webhook_endpoints/{endpoint_id}/deliveries").json
    response = {"model": "tiny", "input": "x", "background": True}
    return {
        "job_id": owner.post("/v1/jobs", json={"prompt": "x"}).json["id"],
        "response_id": owner.post("/v1/responses", json=response).json["id"],
        "file_id": file_id,
        "batch_id": owner.post("/v1/batches", json=batch).json["id"],
        "endpoint_id": endpoint_id,
        "delivery_id": deliveries["data"][0]["id"],
    }


def call(client, method, path, operation, ids):
    body = BODIES.get(operation["operationId"], {}) if "requestBody" in operation else None
    return client.open(path.format(**ids), method=method, json=body, buffered=True)


def cost_of(api, act):
    """Count the commands that the store runs for an act, those of scripts included."""

    def num_calls():
        stats = api.client.info("commandstats")
        return {name: told["calls"] for name, told in stats.items() if name != "cmdstat_info"}

    before = num_calls()
    act()
    after = num_calls()
    return {name: calls - before.get(name, 0) for name, calls in after.items()}


def unknown(ids):
    return {name: one[: -len(encode_base62(0))] + encode_base62(7) for name, one in ids.items()}


@matrix(GUARDED)
def test_without_a_key_there_is_nothing_but_401(api, method, path, operation):
    names = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
    address = path.format(**dict.fromkeys(names, "x"))

    answer = api.app.test_client().open(address, method=method)

    # Where the id has not the form of one, there is no route to be let into.
    assert answer.status_code == 401
    assert answer.json["error"]["code"] == "invalid_api_key"
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@matrix(BY_ID)
def test_anothers_object_is_as_one_that_does_not_exist(owned, stranger, method, path, operation):
    theirs = call(stranger, method, path, operation, owned)
    nobodys = call(stranger, method, path, operation, unknown(owned))

    assert (theirs.status_code, nobodys.status_code) == (404, 404)
    assert theirs.json["error"] == nobodys.json["error"]
    assert set(theirs.headers.keys()) == set(nobodys.headers.keys())


@matrix(BY_ID)
def test_anothers_object_costs_the_store_what_an_unknown_one_does(
    api, owned, stranger, method, path, operation
):
    call(stranger, method, path, operation, unknown(owned))  # what is only done once, is done

    costs = [
        cost_of(api, lambda ids=ids: call(stranger, method, path, operation, ids))
        for ids in (owned, unknown(owned))
    ]

    assert costs[0] == costs[1]


@matrix(BY_ID)
def test_the_operator_is_told_anothers_id_from_an_unknown_one(
    owned, stranger, method, path, operation
):
    with capture_logs() as lines:
        call(stranger, method, path, operation, owned)
        call(stranger, method, path, operation, unknown(owned))

    names = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
    sought = [(line["event"], line["object_id"]) for line in lines if "object_id" in line]
    assert sought == [
        *[("another tenant's id sought", owned[name]) for name in names],
        *[("unknown id sought", unknown(owned)[name]) for name in names],
    ]
    assert {line["owner"] for line in lines if "owner" in line} == {"owner"}


def test_an_id_in_a_cursor_or_a_body_is_told_too(owned, stranger):
    file_id = owned["file_id"]
    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}

    with capture_logs() as lines:
        stranger.get("/v1/files", query_string={"after": file_id})
        stranger.post("/v1/batches", json={**batch, "input_file_id": file_id})
        stranger.post("/v1/batches", json={**batch, "input_file_id": "../etc\r\nx"})

    sought = [(line["event"], line["object_id"]) for line in lines if "object_id" in line]
    assert sought == [("another tenant's id sought", file_id)] * 2


def test_what_is_ones_own_or_found_leaves_no_such_line(owned, owner):
    with capture_logs() as lines:
        owner.get(f"/v1/jobs/{owned['job_id']}")
        owner.get("/v1/models/none")

    assert [line for line in lines if "object_id" in line] == []


@matrix([found for found in BY_ID if found[0] == "GET"])
def test_the_owner_has_what_the_stranger_was_refused(owned, owner, method, path, operation):
    assert call(owner, method, path, operation, owned).status_code == 200


@pytest.mark.usefixtures("owned")
@matrix([found for found in LISTS if "{" not in found[1]])
def test_a_list_holds_nothing_of_anothers(stranger, method, path, operation):
    query = QUERIES.get(operation["operationId"], {})

    assert stranger.open(path, method=method, query_string=query).json["data"] == []


@matrix([found for found in LISTS if "{" not in found[1]])
def test_anothers_object_is_no_cursor(owned, stranger, method, path, operation):
    query = QUERIES.get(operation["operationId"], {})

    answers = [
        stranger.open(path, method=method, query_string={**query, "after": cursor})
        for known in (owned, unknown(owned))
        for cursor in known.values()
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert len({json.dumps(answer.json["error"]) for answer in answers}) == 1


def test_anothers_file_is_no_input(owned, stranger):
    body = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}

    answers = [
        stranger.post("/v1/batches", json={**body, "input_file_id": ids["file_id"]})
        for ids in (owned, unknown(owned))
    ]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].json["error"] == answers[1].json["error"]


def test_anothers_idempotency_key_says_nothing(owner, stranger):
    headers = {"Idempotency-Key": "the-same"}
    theirs = owner.post("/v1/jobs", json={"prompt": "x"}, headers=headers).json["id"]

    own = stranger.post("/v1/jobs", json={"prompt": "y"}, headers=headers)

    assert own.status_code == 202
    assert own.json["id"] != theirs


def test_a_tenant_in_the_body_is_an_unknown_field(stranger):
    answer = stranger.post("/v1/jobs", json={"prompt": "x", "tenant_id": "owner"})

    assert (answer.status_code, answer.json["error"]["param"]) == (400, "tenant_id")
    assert answer.json["error"]["code"] == "unknown_parameter"
