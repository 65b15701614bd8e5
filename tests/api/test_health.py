import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.app import ApiKeyMissingError, create_app
from engine.registry import ManifestError
from ops.settings import Settings
from tests.api.test_jobs import QUEUE, complete_one


def samples(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_process_with_a_store_is_alive_and_ready(client):
    assert client.get("/livez").json == {"status": "alive"}
    assert client.get("/readyz").json == {"status": "ready"}


def test_the_probe_of_readiness_goes_away_by_itself(client, api):
    client.get("/readyz")

    (key,) = api.client.keys("*")

    assert 0 < api.client.ttl(key) <= 10


def test_metrics_tell_the_queues_as_they_are(client, queue):
    client.post("/v1/jobs", json={"prompt": "a", "priority": "bulk"})
    client.post("/v1/jobs", json={"prompt": "a"})
    client.post("/v1/jobs", json={"prompt": "a"})
    complete_one(queue)
    queue.claim(QUEUE, "worker", 1)

    told = samples(client)

    assert told["promptmill_queue_depth", "bulk", "tiny"] == 1
    assert told["promptmill_queue_depth", "standard", "tiny"] == 0
    assert told["promptmill_jobs_leased", "tiny"] == 1
    assert 0 < told["promptmill_queue_fill_ratio", "tiny"] < 0.01
    assert told["promptmill_queue_pressure_level", "tiny"] == 0
    assert told["promptmill_queue_jobs_total", "submitted", "tiny"] == 3
    assert told["promptmill_queue_jobs_total", "completed", "tiny"] == 1
    assert told["promptmill_jobs_submitted_total", "jobs", "standard", "tiny"] == 2


def test_no_request_adds_a_series_of_its_own(client):
    def num_series():
        return len(re.findall("^promptmill", client.get("/metrics").text, re.MULTILINE))

    def ask(number):
        client.open(f"/v1/{number}", method=f"M{number}")
        client.get(f"/v1/models/{number}")
        client.post("/v1/jobs", json={"prompt": "a", "model": str(number)})

    ask(0)
    num_series()
    before = num_series()

    for number in range(1, 30):
        ask(number)

    assert num_series() == before


def test_refusals_are_counted_by_reason(client, api):
    api.app.test_client().get("/v1/models")
    api.begin_draining()
    client.post("/v1/jobs", json={"prompt": "a"})

    told = samples(client)

    assert told["promptmill_auth_failures_total", "missing"] == 1
    assert told["promptmill_admission_rejections_total", "draining", "standard"] == 1


def test_an_api_without_a_key_does_not_start(settings):
    with pytest.raises(ApiKeyMissingError):
        create_app(settings.model_copy(update={"api_key": None}))


def test_an_api_reads_its_key_from_a_file(settings, tmp_path):
    file = tmp_path / "key"
    file.write_text("from-file\n")
    from_file = {**dict(settings), "api_key": None, "api_key_file": file}
    app = create_app(Settings.model_validate(from_file))

    answer = app.test_client().get("/v1/models", headers={"Authorization": "Bearer from-file"})

    assert answer.status_code == 200


def test_a_folder_that_is_no_model_stops_the_start(settings, tmp_path):
    with pytest.raises(ManifestError):
        create_app(settings.model_copy(update={"models": [tmp_path]}))
