import pytest
from pydantic import SecretStr

from api.app import create_api
from queueing.deliveries import AttemptEnd, AttemptNote, DeliveryLog, Verdict
from queueing.endpoints import MAX_ENDPOINTS, EventType
from queueing.job import WEBHOOK_QUEUE, Job, JobResult, JobState, Outcome
from queueing.store import connect
from queueing.tenants import Tenant, TenantStore
from queueing.webhook_signature import WebhookSecret
from tests.api.conftest import API_KEY

ENDPOINTS = "/v1/webhook_endpoints"
FORM = {
    "name": "mine",
    "url": "https://hooks.example.com/in",
    "event_types": ["job.completed", "batch.completed"],
}
HOOKED = {"prompt": "a", "webhook_url": "https://hooks.example.com/in"}
UNKNOWN = "whep_" + "0" * 22
UNKNOWN_DELIVERY = "dlv_" + "0" * 22


@pytest.fixture
def endpoint(client):
    return client.post(ENDPOINTS, json=FORM).json


@pytest.fixture
def other_client(api, redis_url):
    """Return a client that carries another tenant's key."""
    with connect(redis_url) as connection:
        tenants = TenantStore(connection)
        tenants.put(Tenant("other"))
        _, key = tenants.create_key("other", "test")
    other = api.app.test_client()
    other.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    return other


@pytest.fixture
def log(redis_url):
    with connect(redis_url) as connection:
        yield DeliveryLog(connection)


@pytest.fixture
def failed(endpoint, queue, log):
    """Return the id of a delivery that failed after one attempt."""
    queue.enqueue(Job("job_1", "generate.m", "{}"))
    (claim,) = queue.claim("generate.m", "engine", limit=1)
    queue.finish(Outcome(claim.lease, JobResult(JobState.COMPLETED)))
    return deliver(queue, log, endpoint["id"], status=500)


def deliver(queue, log, endpoint_id, status):
    """Do a worker's part: one attempt, which ends the delivery."""
    (claim,) = queue.claim(WEBHOOK_QUEUE, "cpu", limit=1)
    result = f"{status // 100}xx" if status else "timeout"
    note = AttemptNote(result, status, 7)
    log.note(endpoint_id, claim.lease.job_id, note, Verdict(AttemptEnd.TESTED))
    state = JobState.COMPLETED if result == "2xx" else JobState.FAILED
    queue.finish(Outcome(claim.lease, JobResult(state)))
    return claim.lease.job_id


def error_of(response):
    error = response.json["error"]
    return response.status_code, error["code"], error["param"]


def test_the_secret_is_told_once(client, endpoint):
    found = client.get(f"{ENDPOINTS}/{endpoint['id']}").json

    assert endpoint["signing_secret"].startswith("whsec_")
    assert "signing_secret" not in found
    assert found["signing_secret_hint"] == "whsec_..." + endpoint["signing_secret"][-4:]
    assert endpoint["signing_secret"] not in client.get(ENDPOINTS).text


def test_an_endpoint_is_told_as_it_is(client, endpoint):
    found = client.get(f"{ENDPOINTS}/{endpoint['id']}").json

    assert found == {
        "id": endpoint["id"],
        "object": "webhook_endpoint",
        "created_at": endpoint["created_at"],
        "updated_at": endpoint["updated_at"],
        "signing_secret_hint": endpoint["signing_secret_hint"],
        "enabled": True,
        "disabled_at": None,
        "disabled_reason": None,
        "failures": 0,
        "failing_since": None,
        "paused_until": None,
        **FORM,
    }


def test_endpoints_are_listed_in_pages(client):
    ids = {client.post(ENDPOINTS, json=FORM).json["id"] for _ in range(3)}

    first = client.get(f"{ENDPOINTS}?limit=2").json
    rest = client.get(f"{ENDPOINTS}?limit=2&after={first['last_id']}").json

    assert (len(first["data"]), first["has_more"]) == (2, True)
    assert (len(rest["data"]), rest["has_more"]) == (1, False)
    assert {endpoint["id"] for endpoint in first["data"] + rest["data"]} == ids


def test_an_endpoint_can_be_changed_disabled_and_enabled(client, endpoint):
    path = f"{ENDPOINTS}/{endpoint['id']}"

    changed = client.post(path, json={"name": "other", "event_types": ["job.dead"]}).json
    disabled = client.post(path, json={"enabled": False}).json
    enabled = client.post(path, json={"enabled": True}).json

    assert (changed["name"], changed["event_types"]) == ("other", ["job.dead"])
    assert changed["url"] == FORM["url"]
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "disabled by its owner")
    assert (enabled["enabled"], enabled["disabled_reason"]) == (True, None)


def test_a_deleted_endpoint_is_gone(client, endpoint):
    path = f"{ENDPOINTS}/{endpoint['id']}"

    deleted = client.delete(path)

    assert deleted.json == {
        "id": endpoint["id"],
        "object": "webhook_endpoint.deleted",
        "deleted": True,
    }
    assert client.get(path).status_code == 404


def test_a_secret_is_rotated_with_and_without_a_body(client, endpoint):
    path = f"{ENDPOINTS}/{endpoint['id']}/rotate_secret"

    first = client.post(path, json={"keep_old_secret_active_for_24_hours": True}).json
    second = client.post(path).json

    secrets = {answer["signing_secret"] for answer in (endpoint, first, second)}
    assert len(secrets) == 3


@pytest.mark.parametrize(
    ("changed", "code", "param"),
    [
        ({"url": "http://hooks.example.com/"}, "invalid_webhook_url", "url"),
        ({"url": "https://169.254.169.254/"}, "webhook_url_not_allowed", "url"),
        ({"url": 7}, "invalid_request", "url"),
        ({"event_types": []}, "invalid_request", "event_types"),
        ({"event_types": ["eval.run.failed"]}, "invalid_request", "event_types[0]"),
        ({"event_types": ["job.completed"] * 99}, "invalid_request", "event_types"),
        ({"name": ""}, "invalid_request", "name"),
        ({"name": None}, "invalid_request", "name"),
        ({"tenant": "b"}, "unknown_parameter", "tenant"),
        ({"signing_secret": "whsec_mine"}, "unknown_parameter", "signing_secret"),
    ],
)
def test_a_bad_form_is_refused_by_the_field_at_fault(client, changed, code, param):
    assert error_of(client.post(ENDPOINTS, json=FORM | changed)) == (400, code, param)


def test_an_update_is_checked_like_a_registration(client, endpoint):
    path = f"{ENDPOINTS}/{endpoint['id']}"

    refused = client.post(path, json={"url": "https://[::1]/"})

    assert error_of(refused) == (400, "webhook_url_not_allowed", "url")
    assert client.get(path).json["url"] == FORM["url"]


def test_repeated_event_types_count_once(client):
    endpoint = client.post(ENDPOINTS, json=FORM | {"event_types": ["job.dead"] * 2}).json

    assert endpoint["event_types"] == ["job.dead"]


def test_there_is_a_limit_to_endpoints(client):
    answers = [client.post(ENDPOINTS, json=FORM).status_code for _ in range(MAX_ENDPOINTS + 1)]

    assert answers == [200] * MAX_ENDPOINTS + [400]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "order=asc", "limit=1&limit=2"]
)
def test_a_bad_page_is_refused(client, query):
    assert client.get(f"{ENDPOINTS}?{query}").status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", UNKNOWN),
        ("POST", UNKNOWN),
        ("DELETE", UNKNOWN),
        ("POST", f"{UNKNOWN}/rotate_secret"),
        ("POST", f"{UNKNOWN}/test"),
        ("GET", f"{UNKNOWN}/deliveries"),
        ("GET", f"{UNKNOWN}/deliveries/{UNKNOWN_DELIVERY}"),
        ("POST", f"{UNKNOWN}/deliveries/{UNKNOWN_DELIVERY}/replay"),
        ("POST", f"{UNKNOWN}/replay_failed"),
        ("GET", "whep_../../x"),
        ("GET", "job_" + "0" * 22),
    ],
)
def test_an_unknown_endpoint_is_not_found(client, method, path):
    body = {"event_type": "job.dead"} if path.endswith("/test") else {}

    response = client.open(f"{ENDPOINTS}/{path}", method=method, json=body)

    assert error_of(response) == (404, "not_found", None)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("POST", ""),
        ("DELETE", ""),
        ("POST", "/rotate_secret"),
        ("POST", "/test"),
        ("GET", "/deliveries"),
        ("GET", "/deliveries/{delivery}"),
        ("POST", "/deliveries/{delivery}/replay"),
        ("POST", "/replay_failed"),
    ],
)
def test_another_tenants_endpoint_looks_like_none(other_client, endpoint, failed, method, path):
    path = endpoint["id"] + path.format(delivery=failed)
    body = {"event_type": "job.dead"} if path.endswith("/test") else {}

    response = other_client.open(f"{ENDPOINTS}/{path}", method=method, json=body)

    assert error_of(response) == (404, "not_found", None)
    assert other_client.get(ENDPOINTS).json["data"] == []


def test_a_cursor_that_is_not_mine_is_not_found(client):
    assert error_of(client.get(f"{ENDPOINTS}?after={UNKNOWN}")) == (404, "not_found", "after")


def test_the_event_types_are_listed(client):
    listed = client.get("/v1/webhook_event_types").json

    assert listed == {"object": "list", "data": [event.value for event in EventType]}


def test_deliveries_are_listed_by_status_with_their_attempts(client, endpoint, failed):
    path = f"{ENDPOINTS}/{endpoint['id']}/deliveries"

    (delivery,) = client.get(f"{path}?status=failed").json["data"]

    assert delivery["id"] == failed
    assert delivery["event_id"] == "evt_1"
    assert delivery["event_type"] == "job.completed"
    assert delivery["status"] == "failed"
    (attempt,) = delivery["attempts"]
    assert (attempt["result"], attempt["status_code"], attempt["duration_ms"]) == ("5xx", 500, 7)
    assert client.get(f"{path}?status=delivered").json["data"] == []
    assert client.get(f"{path}/{failed}").json == delivery
    assert client.get(f"{path}?status=lost").status_code == 400


def test_a_failed_delivery_is_replayed_once(client, endpoint, failed, queue, log):
    path = f"{ENDPOINTS}/{endpoint['id']}/deliveries/{failed}"

    replayed = client.post(f"{path}/replay").json
    again = client.post(f"{path}/replay")

    assert (replayed["event_id"], replayed["status"]) == ("evt_1", "pending")
    assert client.get(path).json["replayed_as"] == replayed["id"]
    assert error_of(again)[:2] == (409, "conflict")
    assert deliver(queue, log, endpoint["id"], status=200) == replayed["id"]


def test_a_delivery_that_is_under_way_is_not_replayed(client, endpoint, failed):
    path = f"{ENDPOINTS}/{endpoint['id']}/deliveries"
    replayed = client.post(f"{path}/{failed}/replay").json

    assert error_of(client.post(f"{path}/{replayed['id']}/replay"))[:2] == (409, "conflict")


@pytest.mark.usefixtures("failed")
def test_all_failures_are_replayed_at_once(client, endpoint, queue, log):
    path = f"{ENDPOINTS}/{endpoint['id']}"

    replayed = client.post(f"{path}/replay_failed").json
    again = client.post(f"{path}/replay_failed").json

    assert replayed["data"] == [deliver(queue, log, endpoint["id"], status=200)]
    assert again["data"] == []


def test_an_unknown_delivery_is_not_found(client, endpoint):
    path = f"{ENDPOINTS}/{endpoint['id']}/deliveries/{UNKNOWN_DELIVERY}"

    assert error_of(client.get(path)) == (404, "not_found", None)
    assert error_of(client.post(f"{path}/replay")) == (404, "not_found", None)


def test_a_tenant_is_told_what_signs_its_jobs_webhooks(settings):
    secret = WebhookSecret.generate().text
    api = create_api(settings.model_copy(update={"webhook_secret": SecretStr(secret)}))
    client = api.app.test_client()

    answer = client.get("/v1/webhook_secret", headers={"Authorization": f"Bearer {API_KEY}"})

    api.close()
    assert answer.json == {"object": "webhook_secret", "signing_secret": secret}


def test_a_job_names_a_receiver_where_there_is_a_secret_to_sign_with(settings):
    secret = SecretStr(WebhookSecret.generate().text)
    api = create_api(settings.model_copy(update={"webhook_secret": secret}))
    client = api.app.test_client()

    answer = client.post("/v1/jobs", json=HOOKED, headers={"Authorization": f"Bearer {API_KEY}"})

    api.close()
    assert answer.status_code == 202


def test_without_a_secret_a_job_that_names_a_receiver_is_refused_by_name(client, api):
    answer = client.post("/v1/jobs", json=HOOKED)

    assert error_of(answer) == (400, "webhooks_not_configured", "webhook_url")
    assert "PROMPTMILL_WEBHOOK_SECRET" in answer.json["error"]["message"]
    assert api.client.keys("*job:*") == []


def test_a_url_that_is_wrong_anyway_is_told_first(client):
    answer = client.post("/v1/jobs", json=HOOKED | {"webhook_url": "https://10.0.0.1/"})

    assert error_of(answer) == (400, "webhook_url_not_allowed", "webhook_url")


def test_an_endpoint_needs_no_secret_of_the_installation(client, endpoint):
    assert client.get("/v1/webhook_secret").status_code == 404
    assert endpoint["enabled"] is True


def test_without_a_secret_there_is_none_to_tell(client):
    assert error_of(client.get("/v1/webhook_secret")) == (404, "not_found", None)


def test_a_test_that_nobody_attempts_says_where_to_look(api, client, endpoint):
    api.waiters.close()  # a process that ends lets nobody wait

    refused = client.post(f"{ENDPOINTS}/{endpoint['id']}/test", json={"event_type": "job.dead"})

    assert error_of(refused)[:2] == (400, "webhook_undeliverable")
