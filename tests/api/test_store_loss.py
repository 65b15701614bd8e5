from time import monotonic

import pytest


@pytest.fixture
def away(redis_server):
    """Return a function that takes the store away; it is back after the test."""
    redis_server_ways = {"killed": redis_server.kill9, "hanging": redis_server.suspend}
    taken = []

    def take(way):
        redis_server_ways[way]()
        taken.append(way)

    yield take
    if taken == ["killed"]:
        redis_server.start()
    elif taken:
        redis_server.resume()


@pytest.mark.parametrize("way", ["killed", "hanging"])
def test_a_submit_without_a_store_is_503_within_a_second(client, away, way):
    client.post("/v1/jobs", json={"prompt": "before"})
    away(way)
    begun_s = monotonic()

    answer = client.post("/v1/jobs", json={"prompt": "during"})

    assert answer.status_code == 503
    assert answer.json["error"]["code"] == "store_unavailable"
    assert int(answer.headers["Retry-After"]) > 0
    assert monotonic() - begun_s < 1.5


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_reading_and_erasing_without_a_store_are_503(client, away, method):
    path = client.post("/v1/jobs", json={"prompt": "before"}).headers["Location"]
    away("killed")

    answer = client.open(path, method=method)

    assert answer.status_code == 503


def test_without_a_store_the_process_lives_and_is_not_ready(client, away):
    away("killed")

    assert client.get("/livez").status_code == 200
    assert client.get("/readyz").status_code == 503
    assert client.get("/readyz").json == {"status": "store_unavailable"}


def test_without_a_store_metrics_leave_the_queues_out(client, away):
    client.post("/v1/jobs", json={"prompt": "before"})
    assert "promptmill_queue_depth{" in client.get("/metrics").text
    away("killed")

    scraped = client.get("/metrics")

    assert scraped.status_code == 200
    assert "promptmill_queue_depth{" not in scraped.text
    assert 'promptmill_redis_errors_total{kind="connection"}' in scraped.text


def test_service_goes_on_when_the_store_is_back(client, redis_server):
    path = client.post("/v1/jobs", json={"prompt": "before"}).headers["Location"]
    redis_server.kill9()
    refused = client.post("/v1/jobs", json={"prompt": "during"})

    redis_server.start()

    assert refused.status_code == 503
    assert client.get(path).json["state"] == "queued"
    assert client.post("/v1/jobs", json={"prompt": "after"}).status_code == 202
    assert client.get("/readyz").status_code == 200


def test_a_store_without_memory_is_503_and_still_drains(client, api):
    path = client.post("/v1/jobs", json={"prompt": "before"}).headers["Location"]
    api.client.config_set("maxmemory", "1")
    try:
        answer = client.post("/v1/jobs", json={"prompt": "during"})
        cancelled = client.post(f"{path}/cancel")
        ready = client.get("/readyz")
    finally:
        api.client.config_set("maxmemory", "0")

    assert answer.status_code == 503
    assert answer.json["error"]["code"] == "store_unavailable"
    assert cancelled.json["state"] == "cancelled"
    assert ready.status_code == 503
