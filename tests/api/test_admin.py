"""The admin API: who may, and what it does."""

import socket

import httpx
import pytest

from api.app import create_api
from ops.settings import Settings
from queueing.deliveries import AttemptEnd, AttemptNote, DeliveryLog, Verdict
from queueing.job import JobState, generate_queue
from queueing.model_routes import ModelRoutes
from queueing.queue import JobQueue, QueueLimits
from queueing.tenants import Tenant, TenantStore
from tests.api.test_jobs import QUEUE, complete_one
from tests.support.api_server import ApiServer
from tests.support.waiting import wait_until

ADMIN_KEY = "admin-key-of-the-tests"


@pytest.fixture
def api(settings):
    api = create_api(settings.model_copy(update={"admin_key": None, "admin_key_file": None}))
    yield api
    api.close()


@pytest.fixture
def managed(settings, tmp_path):
    """Return an API that has an admin's side."""
    key_file = tmp_path / "admin-key"
    key_file.write_text(ADMIN_KEY + "\n")
    api = create_api(Settings.model_validate({**dict(settings), "admin_key_file": key_file}))
    yield api
    api.close()


@pytest.fixture
def admin(managed):
    client = managed.admin.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {ADMIN_KEY}"
    return client


@pytest.fixture
def user(managed):
    client = managed.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = "Bearer pm_test-key"
    return client


def test_without_an_admin_key_there_is_no_admin_api(api, client):
    assert api.admin is None
    assert client.get("/admin/queues").status_code == 404


def test_the_tenants_api_has_no_route_of_the_admins(user):
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}

    assert user.get("/admin/queues").status_code == 404
    assert user.get("/admin/queues", headers=headers).status_code == 401


def test_a_users_key_is_403_and_any_other_401(managed):
    client = managed.admin.test_client()
    tenants = TenantStore(managed.client)
    tenants.put(Tenant("acme"))
    _, text = tenants.create_key("acme")

    answers = {
        key: client.get("/admin/queues", headers={"Authorization": f"Bearer {key}"})
        for key in ("pm_test-key", text, "wrong", "", ADMIN_KEY + "x")
    }

    codes = {key: answer.json["error"]["code"] for key, answer in answers.items()}
    assert {codes["pm_test-key"], codes[text]} == {"permission_denied"}
    assert {codes["wrong"], codes[""], codes[ADMIN_KEY + "x"]} == {"invalid_api_key"}
    assert {answer.status_code for answer in answers.values()} == {401, 403}
    assert client.get("/admin/queues").status_code == 401


def test_every_admin_route_asks_for_the_key(managed):
    client = managed.admin.test_client()
    answers = [
        client.open(rule.rule.replace("<tenant_name:name>", "acme"), method=method)
        for rule in managed.admin.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    ]

    assert {answer.status_code for answer in answers} == {401}


def test_no_admin_route_takes_a_users_key(managed):
    client = managed.admin.test_client()
    headers = {"Authorization": "Bearer pm_test-key"}
    answers = [
        client.open(rule.rule.replace("<tenant_name:name>", "acme"), method=method, headers=headers)
        for rule in managed.admin.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    ]

    assert len(answers) > 10
    assert {answer.status_code for answer in answers} == {403}


def test_queues_are_told_as_they_are(admin, user, queue):
    user.post("/v1/jobs", json={"prompt": "a", "priority": "bulk"})
    user.post("/v1/jobs", json={"prompt": "a"})
    complete_one(queue)

    (told,) = admin.get("/admin/queues").json["data"]

    assert told["name"] == QUEUE
    assert told["ready"] == {"realtime": 0, "standard": 0, "bulk": 1}
    assert (told["later"], told["leased"]) == (0, 0)
    assert told["totals"] == {"submitted": 2, "claimed": 1, "completed": 1}


def test_tenants_and_keys_are_made_listed_and_ended(admin, managed):
    body = {"tier": "premium", "priorities": ["bulk"], "models": ["tiny"], "tokens_per_min": 5}
    made = admin.put("/admin/tenants/acme", json=body)
    created = admin.post("/admin/tenants/acme/keys", json={"name": "laptop"}).json
    keyed = {"Authorization": f"Bearer {created['api_key']}"}
    before = managed.app.test_client().get("/v1/tenant", headers=keyed)

    revoked = admin.post(f"/admin/keys/{created['id']}/revoke")
    (listed,) = admin.get("/admin/tenants/acme/keys").json["data"]

    assert made.json == {
        "object": "tenant",
        "name": "acme",
        "requests_per_min": None,
        "tokens_per_day": None,
        **body,
    }
    assert admin.get("/admin/tenants").json["data"] == [made.json]
    assert before.json["priorities"] == ["bulk"]
    assert revoked.status_code == 204
    assert listed["revoked_at"] >= listed["created_at"]
    assert "api_key" not in listed


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/admin/tenants/Not-A-Name", {}, 404),
        ("PUT", "/admin/tenants/acme", {"tier": "gold"}, 400),
        ("PUT", "/admin/tenants/acme", {"priorities": []}, 400),
        ("PUT", "/admin/tenants/acme", {"tokens_per_min": 0}, 400),
        ("PUT", "/admin/tenants/acme", {"quota": 1}, 400),
        ("POST", "/admin/tenants/nobody/keys", {}, 404),
        ("POST", "/admin/keys/key_0000000000000000000000/revoke", None, 404),
        ("POST", "/admin/dead_jobs/job_0000000000000000000000/retry", None, 404),
        ("DELETE", "/admin/dead_jobs/job_0000000000000000000000", None, 404),
        ("GET", "/admin/dead_jobs?after=job_x", None, 404),
    ],
)
def test_what_cannot_be_done_is_refused(admin, method, path, body, status):
    assert admin.open(path, method=method, json=body).status_code == status


def test_dead_jobs_are_listed_tried_again_and_dropped(admin, user, managed):
    queue = JobQueue(managed.client, QueueLimits(max_losses=1, lease_ms=1))
    dead_id = user.post("/v1/jobs", json={"prompt": "deadly"}).json["id"]
    queue.claim(QUEUE, "worker", 1)
    while not queue.reap(QUEUE):
        pass

    (listed,) = admin.get("/admin/dead_jobs").json["data"]
    copy_id = admin.post(f"/admin/dead_jobs/{dead_id}/retry").json["id"]
    dropped = admin.delete(f"/admin/dead_jobs/{dead_id}")

    assert (listed["id"], listed["queue"]) == (dead_id, generate_queue("tiny"))
    assert "deadly" not in str(listed)
    assert user.get(f"/v1/jobs/{copy_id}").json["state"] == JobState.QUEUED
    assert dropped.status_code == 204
    assert user.get(f"/v1/jobs/{dead_id}").status_code == 404
    assert admin.get("/admin/dead_jobs").json["data"] == []


def test_each_port_serves_its_own_routes_whatever_the_headers_say(redis_url, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        admin_port = probe.getsockname()[1]
    keys = {"api_key": "pm_test-key", "admin_key": ADMIN_KEY, "admin_port": str(admin_port)}
    server = ApiServer(tmp_path / "api.log", {"redis_url": redis_url, **keys})
    server.start()
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    try:
        with httpx.Client(headers=headers) as http:
            admins = http.get(f"http://127.0.0.1:{admin_port}/admin/queues")
            users = http.get(f"http://127.0.0.1:{admin_port}/v1/models")
            spoofed = http.get(
                f"{server.url}/admin/queues", headers={"Host": f"127.0.0.1:{admin_port}"}
            )
    finally:
        server.stop()

    assert admins.json() == {"object": "list", "data": []}
    assert users.status_code == 404
    assert spoofed.status_code == 401


def test_endpoints_that_deliveries_disabled_are_listed_without_url_or_secret(admin, user, managed):
    url = "https://hooks.example.com/token-in-a-path"
    form = {"name": "x", "url": url, "event_types": ["job.dead"]}
    endpoint = user.post("/v1/webhook_endpoints", json=form).json
    note = AttemptNote("4xx", 410, duration_ms=1)
    verdict = Verdict(AttemptEnd.GIVEN_UP, disable_reason="gone")
    DeliveryLog(managed.client).note(endpoint["id"], "dlv_1", note, verdict)

    told = admin.get("/admin/disabled_endpoints")

    (listed,) = told.json["data"]
    assert (listed["id"], listed["tenant"]) == (endpoint["id"], "default")
    assert listed["disabled_reason"] == "gone"
    assert endpoint["signing_secret"] not in told.text
    assert "token-in-a-path" not in told.text


def test_a_switch_is_flipped_and_obeyed(admin, user):
    bulk = {"prompt": "a", "priority": "bulk"}
    before = user.post("/v1/jobs", json=bulk)
    on = admin.put("/admin/switches/shed_bulk", json={"value": 1})
    listed = admin.get("/admin/switches").json["data"]
    shed = user.post("/v1/jobs", json=bulk)
    off = admin.put("/admin/switches/shed_bulk", json={"value": None})
    after = user.post("/v1/jobs", json=bulk)

    assert (on.json["value"], off.json["value"]) == (1, None)
    assert {"name": "shed_bulk", "value": 1} in listed
    assert {"name": "max_tokens", "value": None} in listed
    assert [before.status_code, shed.status_code, after.status_code] == [202, 429, 202]


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [("gone", {"value": 1}, 404), ("max_tokens", {"value": 0}, 400), ("max_tokens", {}, 400)],
)
def test_a_switch_takes_what_it_can_mean(admin, name, body, status):
    assert admin.put(f"/admin/switches/{name}", json=body).status_code == status


def test_a_model_route_is_set_listed_and_ended(admin, managed):
    on = admin.put("/admin/model_routes/large", json={"used": "small"})
    listed = admin.get("/admin/model_routes").json["data"]
    seen = ModelRoutes(managed.client).read()
    off = admin.put("/admin/model_routes/large", json={"used": None})

    assert (on.json, off.json) == (
        {"model": "large", "used": "small"},
        {"model": "large", "used": None},
    )
    assert listed == [{"model": "large", "used": "small"}]
    assert seen == {"large": "small"}
    assert admin.get("/admin/model_routes").json["data"] == []


@pytest.mark.parametrize("body", [{}, {"used": ""}, {"used": "large"}, {"used": 1}])
def test_a_model_route_names_another_model(admin, body):
    assert admin.put("/admin/model_routes/large", json=body).status_code == 400


def test_draining_refuses_new_work_and_readiness_in_every_process(admin, user, settings):
    path = user.post("/v1/jobs", json={"prompt": "a"}).headers["Location"]
    other = create_api(settings)
    begun = admin.post("/admin/drain")

    wait_until(lambda: user.get("/readyz").json == {"status": "draining"}, limit_s=2.0)
    refused = user.post("/v1/jobs", json={"prompt": "a"})
    refused_by_the_other = other.app.test_client().get("/readyz")

    other.close()
    assert (begun.status_code, begun.json["draining"]) == (200, True)
    assert (refused.status_code, refused.json["error"]["code"]) == (503, "draining")
    assert "Retry-After" in refused.headers
    assert refused_by_the_other.json == {"status": "draining"}
    assert user.get(path).json["state"] == "queued"


def test_a_drain_ends_as_it_began(admin, user):
    admin.post("/admin/drain")
    wait_until(lambda: user.get("/readyz").status_code == 503, limit_s=2.0)

    ended = admin.delete("/admin/drain")

    wait_until(lambda: user.get("/readyz").status_code == 200, limit_s=2.0)
    assert ended.json == {"object": "drain", "draining": False, "leased": {}}
    assert user.post("/v1/jobs", json={"prompt": "a"}).status_code == 202


def test_a_drain_is_told_with_what_workers_still_hold(admin, user, queue):
    user.post("/v1/jobs", json={"prompt": "a"})
    queue.claim(QUEUE, "worker", 1)
    admin.post("/admin/drain")

    told = admin.get("/admin/drain")

    assert told.json == {"object": "drain", "draining": True, "leased": {QUEUE: 1}}
    assert {"name": "drain", "value": 1} in admin.get("/admin/switches").json["data"]
