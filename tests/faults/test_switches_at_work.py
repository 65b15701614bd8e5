"""Degradation switches flipped under load: seen by running processes, without a restart."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from queueing.errors import QueueShed
from queueing.job import JobState, Priority, generate_queue
from tests.support.api_server import ApiServer
from tests.support.cluster import Cluster
from tests.support.jobs import TENANT, state_of
from tests.support.ledger import ALL_IS_WELL, a_prompt_job
from tests.support.local_stack import write_named_model

KEY = "pm_switches"


def flip(cluster: Cluster, *words: str) -> str:
    """Run the operator's command; return what it says."""
    environment = {
        "PATH": os.defpath,
        "HOME": str(cluster.folder),
        "PROMPTMILL_REDIS_URL": cluster.server.url,
    }
    command = [sys.executable, "-m", "ops.cli", "switch", *words]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.fault("F30")
def test_a_running_worker_obeys_a_flipped_switch(cluster):
    worker = cluster.start_worker(step_ms=5)
    before = cluster.ledger.submit(cluster.queue, "before", 400)
    cluster.wait_until(lambda: cluster.num_running() == 1)

    said = flip(cluster, "max_tokens", "3")
    cluster.wait_until(lambda: worker.events("switch flipped"), limit_s=2.5)

    capped = a_prompt_job("capped", 50)
    cluster.queue.enqueue(capped)
    cluster.wait_until(lambda: state_of(cluster.queue, capped.id) is JobState.COMPLETED)
    cluster.wait_until(lambda: state_of(cluster.queue, before) is JobState.COMPLETED)
    assert cluster.queue.get(capped.id, TENANT).result.usage.completion_tokens == 3
    assert cluster.queue.get(before, TENANT).result.usage.completion_tokens == 400
    assert '"switch flipped"' in said
    assert '"by"' in said
    assert cluster.drain(worker) == 0


@pytest.mark.fault("F30")
def test_work_is_shed_and_taken_again_as_the_operator_says(cluster):
    flip(cluster, "shed_bulk", "on")
    with pytest.raises(QueueShed):
        cluster.queue.enqueue(a_prompt_job("bulk", 3, priority=Priority.BULK))

    flip(cluster, "shed_bulk", "off")

    assert cluster.queue.enqueue(a_prompt_job("bulk", 3, priority=Priority.BULK)).created


@pytest.fixture
def api(cluster) -> Iterator[ApiServer]:
    """Return an API that serves two models, `large` and `small`."""
    folders = [write_named_model(cluster.folder / name, name) for name in ("large", "small")]
    named = {
        "redis_url": cluster.server.url,
        "models": json.dumps([str(folder) for folder in folders]),
        "api_key": KEY,
        "data_dir": str(cluster.folder / "data"),
    }
    server = ApiServer(cluster.folder / "api.log", named)
    server.start()
    yield server
    server.stop()


@pytest.mark.fault("F30")
def test_a_running_api_gives_jobs_to_the_model_the_operator_names(cluster, api):
    headers = {"Authorization": f"Bearer {KEY}"}

    def model_used() -> object:
        body = {"model": "large", "prompt": "a"}
        answer = httpx.post(f"{api.url}/v1/jobs", json=body, headers=headers, trust_env=False)
        return answer.json()["model"]

    before = model_used()
    flip(cluster, "use_model", "large=small")
    cluster.wait_until(lambda: model_used() == "small", limit_s=2.5)
    flip(cluster, "use_model", "large=off")
    cluster.wait_until(lambda: model_used() == "large", limit_s=2.5)

    assert before == "large"
    assert cluster.queue.totals(generate_queue("small"))["submitted"] > 0
    assert api.log.count('"switch flipped"') == 2


@pytest.mark.fault("F30")
def test_repeated_prompts_are_answered_without_the_engine_while_the_operator_says_so(cluster):
    worker = cluster.start_worker()
    flip(cluster, "reuse_answers", "60")
    cluster.wait_until(lambda: worker.events("switch flipped"))
    cluster.ledger.submit(cluster.queue, "once more", 200)
    cluster.wait_until_settled()
    cluster.wait_until(lambda: any(cluster.client.scan_iter("{pm}:tenant:*:answer:*")))

    again = cluster.ledger.submit(cluster.queue, "once more", 200)
    cluster.wait_until_settled()

    record = cluster.queue.get(again, TENANT)
    assert "reuse_ms" in record.stages
    assert "decode_ms" not in record.stages
    assert record.result.usage.completion_tokens == 200
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.drain(worker) == 0
