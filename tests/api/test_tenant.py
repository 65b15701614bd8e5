"""A tenant's own view: its jobs by state and its use of the service."""

import pytest

from queueing.admission import RateLimits
from queueing.job import Priority
from queueing.tenants import Tenant, TenantStore, Tier
from tests.api.test_jobs import complete_one


def submit(client, times=1):
    return [client.post("/v1/jobs", json={"prompt": "hi"}).json["id"] for _ in range(times)]


def test_jobs_are_listed_by_the_state_they_are_in(client, queue):
    submit(client, 2)
    complete_one(queue, "the text")

    completed = client.get("/v1/jobs?state=completed").json
    queued = client.get("/v1/jobs?state=queued").json

    assert [job["result"]["text"] for job in completed["data"]] == ["the text"]
    assert [job["state"] for job in queued["data"]] == ["queued"]
    assert (completed["object"], completed["has_more"]) == ("list", False)


def test_pages_are_read_by_cursor(client):
    submit(client, 5)
    seen, after = [], ""

    for _ in range(3):
        page = client.get(f"/v1/jobs?state=queued&limit=2{after}").json
        seen += [job["id"] for job in page["data"]]
        after = f"&after={page['last_id']}"

    assert len(set(seen)) == len(seen) == 5
    assert not page["has_more"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "state"),
        ("?state=", "state"),
        ("?state=gone", "state"),
        ("?state=queued&limit=0", "limit"),
        ("?state=queued&limit=101", "limit"),
        ("?state=queued&limit=x", "limit"),
        ("?state=queued&order=up", "order"),
        ("?state=queued&tenant=other", "tenant"),
        ("?state=queued&state=dead", "state"),
    ],
)
def test_a_list_is_asked_for_plainly(client, query, param):
    answer = client.get(f"/v1/jobs{query}")

    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)


def test_an_unknown_cursor_is_404(client):
    answer = client.get("/v1/jobs?state=queued&after=job_nowhere")

    assert (answer.status_code, answer.json["error"]["param"]) == (404, "after")


def test_a_tenant_is_told_what_it_may_do_and_what_it_used(api, queue):
    tenants = TenantStore(api.client)
    limits = RateLimits(requests_per_min=100, tokens_per_day=9_000)
    rights = frozenset({Priority.BULK, Priority.STANDARD})
    tenants.put(Tenant("acme", Tier.PREMIUM, rights, frozenset({"tiny"}), limits))
    client = api.app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {tenants.create_key('acme')[1]}"
    submit(client, 3)
    complete_one(queue)
    client.post(f"/v1/jobs/{submit(client)[0]}/cancel")

    told = client.get("/v1/tenant").json

    usage = told.pop("usage")
    assert told == {
        "object": "tenant",
        "name": "acme",
        "tier": "premium",
        "priorities": ["standard", "bulk"],
        "models": ["tiny"],
        "limits": {
            "requests_per_minute": 100,
            "tokens_per_minute": None,
            "tokens_per_day": 9_000,
        },
    }
    counted = {"submitted": 4, "queued": 2, "completed": 1, "cancelled": 1}
    assert {name: usage["jobs"][name] for name in counted} == counted
    assert usage["tokens"] == 7
