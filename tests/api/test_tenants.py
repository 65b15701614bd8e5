"""Several tenants on one API: keys, rights, rates, and nobody sees what is another's."""

import pytest

from api import auth
from queueing.admission import RateLimits
from queueing.job import Priority
from queueing.tenants import Tenant, TenantStore, Tier
from tests.api.test_jobs import QUEUE


@pytest.fixture
def tenants(api):
    return TenantStore(api.client)


@pytest.fixture
def client_of(api, tenants):
    """Return a way to make a tenant and a client that carries its key."""

    def make(tenant):
        tenants.put(tenant)
        _, text = tenants.create_key(tenant.name)
        client = api.app.test_client()
        client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {text}"
        return client

    return make


def test_a_tenant_sees_its_own_jobs_only(client_of):
    one, other = client_of(Tenant("one")), client_of(Tenant("other"))

    path = one.post("/v1/jobs", json={"prompt": "hi"}).headers["Location"]

    assert one.get(path).status_code == 200
    assert other.get(path).status_code == 404
    assert other.post(f"{path}/cancel").status_code == 404
    assert other.delete(path).status_code == 404
    assert one.get(path).json["state"] == "queued"


def test_a_priority_that_is_not_allowed_is_403(client_of):
    client = client_of(Tenant("bulk-only", priorities=frozenset({Priority.BULK})))

    refused = client.post("/v1/jobs", json={"prompt": "hi", "priority": "realtime"})
    allowed = client.post("/v1/jobs", json={"prompt": "hi", "priority": "bulk"})

    assert (refused.status_code, refused.json["error"]["code"]) == (403, "priority_not_allowed")
    assert refused.json["error"]["param"] == "priority"
    assert allowed.status_code == 202


def test_a_model_that_is_not_allowed_is_as_one_that_is_not_served(client_of):
    client = client_of(Tenant("elsewhere", models=frozenset({"large"})))

    hidden = client.post("/v1/jobs", json={"prompt": "x" * 9_000, "model": "tiny"})
    unknown = client.post("/v1/jobs", json={"prompt": "hi", "model": "none"})

    assert (hidden.status_code, hidden.json["error"]) == (404, unknown.json["error"])
    assert hidden.json["error"]["code"] == "model_not_found"
    assert client.get("/v1/models").json["data"] == []
    assert client.get("/v1/models/tiny").status_code == 404


def test_a_batch_needs_the_right_to_bulk_work(client_of):
    client = client_of(Tenant("live-only", priorities=frozenset({Priority.REALTIME})))
    body = {
        "input_file_id": "file-" + "0" * 22,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }

    answer = client.post("/v1/batches", json=body)

    assert (answer.status_code, answer.json["error"]["code"]) == (403, "priority_not_allowed")


def test_a_tier_sets_the_weight_its_jobs_are_served_with(client_of, api):
    client = client_of(Tenant("payer", tier=Tier.PREMIUM))

    job_id = client.post("/v1/jobs", json={"prompt": "hi"}).json["id"]

    assert api.client.hget(f"{{pm}}:job:{job_id}", "weight") == "4"


def test_over_its_rate_a_tenant_is_told_when_to_come_back(client_of):
    client = client_of(Tenant("eager", limits=RateLimits(requests_per_min=2)))

    answers = [client.post("/v1/jobs", json={"prompt": "hi"}) for _ in range(4)]

    assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[3].json["error"]["code"] == "rate_limit_exceeded"
    assert answers[3].json["error"]["type"] == "rate_limit_error"
    assert 0 < int(answers[3].headers["Retry-After"]) <= 120
    assert answers[3].headers["RateLimit-Limit"] == "3"
    assert int(answers[3].headers["RateLimit-Reset"]) <= 90


def test_asking_for_a_job_costs_nothing(client_of):
    client = client_of(Tenant("patient", limits=RateLimits(requests_per_min=1)))
    path = client.post("/v1/jobs", json={"prompt": "hi"}).headers["Location"]

    answers = [client.get(path) for _ in range(20)]

    assert {answer.status_code for answer in answers} == {200}


def test_a_prompt_and_all_it_may_generate_count_as_tokens(client_of):
    client = client_of(Tenant("wordy", limits=RateLimits(tokens_per_min=100)))

    first = client.post("/v1/jobs", json={"prompt": "x" * 50, "max_tokens": 100})
    second = client.post("/v1/jobs", json={"prompt": "x", "max_tokens": 1})

    assert first.headers["RateLimit-Remaining"] == "0"
    assert second.status_code == 429


def test_a_quota_that_is_used_up_is_not_worth_a_retry(client_of):
    client = client_of(Tenant("frugal", limits=RateLimits(tokens_per_day=10)))

    answer = client.post("/v1/jobs", json={"prompt": "hi", "max_tokens": 100})

    assert (answer.status_code, answer.json["error"]["code"]) == (429, "quota_exceeded")
    assert answer.headers["x-should-retry"] == "false"


def test_what_is_refused_for_its_rate_is_counted_and_not_queued(client_of, client, queue):
    limited = client_of(Tenant("limited", limits=RateLimits(tokens_per_min=1)))
    limited.post("/v1/jobs", json={"prompt": "hi"})
    limited.post("/v1/jobs", json={"prompt": "hi"})

    told = client.get("/metrics").text

    assert 'admission_rejections_total{priority="standard",reason="token_budget"} 1.0' in told
    assert len(queue.claim(QUEUE, "worker", 9)) == 1


def test_without_the_store_a_limited_tenant_is_refused_not_unlimited(client_of, redis_server):
    client = client_of(Tenant("limited", limits=RateLimits(requests_per_min=1)))
    client.get("/v1/models")
    redis_server.suspend()
    try:
        answer = client.post("/v1/jobs", json={"prompt": "hi"})
    finally:
        redis_server.resume()

    assert (answer.status_code, answer.json["error"]["code"]) == (503, "store_unavailable")


def test_a_revoked_key_is_refused_once_the_cache_forgets_it(client_of, tenants, monkeypatch):
    client = client_of(Tenant("gone"))
    now_s = 1_000.0
    monkeypatch.setattr(auth, "monotonic", lambda: now_s)
    assert client.get("/v1/models").status_code == 200
    (key,) = tenants.keys_of("gone")
    tenants.revoke_key(key.id)

    now_s += auth.CACHE_S

    assert client.get("/v1/models").status_code == 401


def test_a_key_in_steady_use_is_looked_up_again(client_of, tenants, monkeypatch):
    client = client_of(Tenant("busy"))
    now_s = 1_000.0
    monkeypatch.setattr(auth, "monotonic", lambda: now_s)
    client.get("/v1/models")
    (key,) = tenants.keys_of("busy")
    tenants.revoke_key(key.id)
    now_s += auth.CACHE_S * 0.75
    assert client.get("/v1/models").status_code == 200

    now_s += auth.CACHE_S * 0.75

    assert client.get("/v1/models").status_code == 401
