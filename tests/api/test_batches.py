import io

import pytest

from queueing.admission import RateLimits
from queueing.batch import BatchStatus
from queueing.batch_store import BatchStore
from queueing.store import connect
from queueing.tenants import Tenant, TenantStore
from tests.support.batch_bench import BatchBench, a_line, as_jsonl

BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture
def bench(redis_url, settings):
    """Return the worker's side, on the store's own time."""
    client = connect(redis_url)
    bench = BatchBench(client, settings.data_dir)
    bench.batches = BatchStore(client)
    yield bench
    client.close()


@pytest.fixture
def input_file(client) -> str:
    content = as_jsonl([a_line("a"), a_line("b")])
    form = {"purpose": "batch", "file": (io.BytesIO(content), "lines.jsonl")}
    file_id: str = client.post("/v1/files", data=form).json["id"]
    return file_id


def create(client, input_file, headers=None, **fields):
    return client.post(
        "/v1/batches", json=BATCH | {"input_file_id": input_file} | fields, headers=headers
    )


def error_of(response) -> tuple[int, str, str | None]:
    return response.status_code, response.json["error"]["code"], response.json["error"]["param"]


def test_a_new_batch_is_described_in_openais_shape(client, input_file):
    response = create(client, input_file, metadata={"team": "a"})

    batch = response.json
    assert response.status_code == 200
    assert batch["id"].startswith("batch_")
    assert batch["object"] == "batch"
    assert batch["status"] == "validating"
    assert batch["input_file_id"] == input_file
    assert batch["completion_window"] == "24h"
    assert batch["metadata"] == {"team": "a"}
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert batch["expires_at"] - batch["created_at"] in (86_400, 86_401)
    assert batch["errors"] is None
    assert batch["output_file_id"] is None
    assert batch["error_file_id"] is None
    assert client.get(f"/v1/batches/{batch['id']}").json == batch


def test_batches_are_listed_newest_first_in_pages(client, input_file):
    ids = [create(client, input_file).json["id"] for _ in range(3)]

    page = client.get("/v1/batches?limit=2").json
    rest = client.get(f"/v1/batches?limit=2&after={page['last_id']}").json

    assert {batch["id"] for batch in page["data"] + rest["data"]} == set(ids)
    assert (page["has_more"], rest["has_more"]) == (True, False)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "order=asc", "status=failed"])
def test_a_query_out_of_bounds_is_refused_by_name(client, query):
    status, _, param = error_of(client.get(f"/v1/batches?{query}"))

    assert (status, param) == (400, query.partition("=")[0])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"endpoint": "/v1/chat/completions/"}, "endpoint"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "24h\n"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"priority": "realtime"}, "priority"),
        ({"tenant_id": "other"}, "tenant_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        (
            {"output_expires_after": {"anchor": "now", "seconds": 3600}},
            "output_expires_after.anchor",
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds",
        ),
        ({"input_file_id": None}, "input_file_id"),
    ],
)
def test_a_field_that_is_wrong_is_refused_by_name(client, input_file, fields, param):
    status, _, named = error_of(create(client, input_file, **fields))

    assert (status, named) == (400, param)


@pytest.mark.parametrize("file_id", ["file-" + "0" * 22, "../../etc/passwd", "file-{x}", ""])
def test_an_input_file_that_is_not_there_is_not_found(client, file_id):
    assert error_of(create(client, file_id)) == (404, "not_found", "input_file_id")


def test_an_input_file_of_another_purpose_is_refused(client):
    form = {"purpose": "user_data", "file": (io.BytesIO(b"x"), "x")}
    file_id = client.post("/v1/files", data=form).json["id"]

    assert error_of(create(client, file_id)) == (400, "invalid_request", "input_file_id")


def test_a_shorter_window_can_be_asked_for(client, input_file):
    batch = create(client, input_file, completion_window="2s").json

    assert batch["expires_at"] - batch["created_at"] in (2, 3)


def test_a_repeat_with_the_same_key_is_the_same_batch(client, input_file):
    headers = {"Idempotency-Key": "once"}

    first = create(client, input_file, headers)
    second = create(client, input_file, headers)
    other = create(client, input_file, headers, completion_window="1h")

    assert first.json == second.json
    assert len(client.get("/v1/batches").json["data"]) == 1
    assert error_of(other)[:2] == (409, "idempotency_conflict")


def test_cancelling_twice_is_cancelling_once(client, input_file):
    batch_id = create(client, input_file).json["id"]

    first = client.post(f"/v1/batches/{batch_id}/cancel")
    again = client.post(f"/v1/batches/{batch_id}/cancel")

    assert first.json["status"] == again.json["status"] == "cancelling"
    assert first.json["cancelling_at"] is not None


def test_a_batch_that_has_ended_can_not_be_cancelled(client, input_file, bench):
    batch_id = create(client, input_file).json["id"]
    bench.client.hset(f"{{pm}}:batch:{batch_id}", "status", BatchStatus.COMPLETED.value)

    response = client.post(f"/v1/batches/{batch_id}/cancel")

    assert error_of(response)[:2] == (409, "conflict")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", ["batch_" + "0" * 22, "batch_x", "file-" + "0" * 22])
def test_what_is_no_batch_is_not_found(client, path):
    assert client.get(f"/v1/batches/{path}").status_code == 404
    assert client.post(f"/v1/batches/{path}/cancel").status_code == 404


def test_a_file_that_a_live_batch_reads_can_not_be_deleted(client, input_file):
    create(client, input_file)

    response = client.delete(f"/v1/files/{input_file}")

    assert error_of(response)[:2] == (409, "conflict")
    assert client.get(f"/v1/files/{input_file}").status_code == 200


def test_making_a_batch_is_one_request_and_a_refused_one_leaves_its_file_deletable(api):
    tenants = TenantStore(api.client)
    tenants.put(Tenant("acme", limits=RateLimits(requests_per_min=1)))
    _, api_key = tenants.create_key("acme")
    client = api.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {api_key}"
    form = {"purpose": "batch", "file": (io.BytesIO(as_jsonl([a_line("a")])), "lines.jsonl")}
    file_id = client.post("/v1/files", data=form).json["id"]
    first = client.post("/v1/jobs", json={"prompt": "a"})

    refused = create(client, file_id)

    assert first.status_code == 202
    assert error_of(refused)[:2] == (429, "rate_limit_exceeded")
    assert 0 < int(refused.headers["Retry-After"]) <= 120
    assert client.delete(f"/v1/files/{file_id}").status_code == 200


def test_batches_need_a_key(api):
    client = api.app.test_client()

    assert client.get("/v1/batches").status_code == 401
    assert client.get("/v1/files").status_code == 401
