"""The drain switch flipped under load: seen by running workers of both kinds, and undone."""

import base64
import json
import os
import sys

import httpx
import pytest

from ops.stack import free_port
from queueing.job import WEBHOOK_QUEUE, JobResult, JobState, Outcome
from queueing.switches import Switch, SwitchBoard
from tests.support.cluster import WorkerProcess
from tests.support.jobs import QUEUE, a_job, claim_one, state_of
from tests.support.ledger import ALL_IS_WELL
from tests.support.receiver import receiver

SEEN_LIMIT_S = 2.0


def flip(cluster, value):
    SwitchBoard(cluster.client).flip(Switch.DRAIN, value)


def await_standby(cluster, worker):
    cluster.wait_until(lambda: worker.events("worker draining"), limit_s=SEEN_LIMIT_S)


@pytest.mark.fault("F30")
def test_a_drained_worker_finishes_what_runs_and_leaves_the_rest_until_it_is_resumed(cluster):
    port = free_port()
    worker = cluster.start_worker(step_ms=5, metrics_port=port)
    running = cluster.ledger.submit(cluster.queue, "running", 300)
    cluster.wait_until(lambda: cluster.num_running() == 1)
    flip(cluster, 1)
    await_standby(cluster, worker)

    waiting = cluster.ledger.submit(cluster.queue, "waiting", 3)
    cluster.wait_until(lambda: state_of(cluster.queue, running) is JobState.COMPLETED)
    state_meanwhile = state_of(cluster.queue, waiting)
    told_meanwhile = gauges_of(port)
    flip(cluster, None)
    cluster.wait_until_settled()

    assert state_meanwhile is JobState.QUEUED
    assert told_meanwhile == {"promptmill_worker_ready": 0, "promptmill_worker_draining": 1}
    assert gauges_of(port) == {"promptmill_worker_ready": 1, "promptmill_worker_draining": 0}
    assert worker.is_running
    assert len(worker.events("worker resumed")) == 1
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.drain(worker) == 0


@pytest.mark.fault("F30")
def test_a_drained_worker_hands_back_what_outlasts_the_grace_and_stays(make_cluster):
    cluster = make_cluster(grace_s=0.5, lease_s=30.0, renew_s=5.0)
    worker = cluster.start_worker(step_ms=5)
    for number in range(4):
        cluster.ledger.submit(cluster.queue, f"long {number}", 500)
    cluster.wait_until(lambda: cluster.num_running() == 4)

    flip(cluster, 1)
    cluster.wait_until(lambda: len(worker.events("job released")) == 4)
    num_held = cluster.num_running()
    flip(cluster, None)
    cluster.wait_until_settled()

    assert num_held == 0
    assert worker.is_running
    assert cluster.queue.totals(QUEUE).get("lost", 0) == 0
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.drain(worker) == 0


@pytest.mark.fault("F30")
def test_a_drained_cpu_worker_delivers_nothing_until_it_is_resumed(cluster):
    with receiver() as server:
        worker = start_cpu_worker(cluster, server.port)
        cluster.wait_until(lambda: "ready" in worker.log)
        flip(cluster, 1)
        await_standby(cluster, worker)

        cluster.queue.enqueue(a_job(webhook_url=server.url()))
        cluster.queue.finish(Outcome(claim_one(cluster.queue).lease, JobResult(JobState.COMPLETED)))
        before = cluster.queue.totals(WEBHOOK_QUEUE)
        flip(cluster, None)
        server.take(1)

    assert before == {"submitted": 1}
    assert worker.events("worker resumed") != []


def gauges_of(port):
    """Return what a worker tells of itself."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    lines = [line.rpartition(" ") for line in text.splitlines()]
    return {
        name.partition("{")[0]: float(value)
        for name, _, value in lines
        if name.startswith(("promptmill_worker_ready{", "promptmill_worker_draining{"))
    }


def start_cpu_worker(cluster, port):
    settings = {
        "redis_url": cluster.server.url,
        "webhook_secret": "whsec_" + base64.b64encode(b"s" * 32).decode(),
        "webhook_allow_http": "true",
        "webhook_allow_networks": '["127.0.0.0/8"]',
        "webhook_allow_ports": json.dumps([port]),
        "data_dir": str(cluster.folder / "data"),
    }
    environment = {f"PROMPTMILL_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "ops.cli", "worker", "cpu"]
    environment |= {"HOME": str(cluster.folder), "PATH": os.defpath}
    worker = WorkerProcess(command, environment, cluster.folder / "cpu.log")
    cluster.workers.append(worker)
    return worker
