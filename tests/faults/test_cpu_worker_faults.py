"""A CPU worker that is started while the store can't take its janitor's job."""

import os
import sys

import pytest

from queueing.job import JANITOR_ID
from tests.support.cluster import Cluster, WorkerProcess


def start_cpu_worker(cluster: Cluster) -> WorkerProcess:
    environment = {
        "PATH": os.defpath,
        "HOME": str(cluster.folder),
        "PROMPTMILL_REDIS_URL": cluster.server.url,
    }
    command = [sys.executable, "-m", "ops.cli", "worker", "cpu", "--name", "cpu"]
    worker = WorkerProcess(command, environment, cluster.folder / "cpu.log")
    cluster.workers.append(worker)
    return worker


def has_janitor(cluster: Cluster) -> bool:
    return bool(cluster.client.exists(f"{{pm}}:job:{JANITOR_ID}"))


@pytest.mark.fault("F8")
def test_a_cpu_worker_started_in_a_store_out_of_memory_waits_for_room(cluster):
    cluster.client.config_set("maxmemory", 1)
    worker = start_cpu_worker(cluster)
    cluster.wait_until(lambda: "Trying to re-establish" in worker.log)

    cluster.client.config_set("maxmemory", 0)

    cluster.wait_until(lambda: has_janitor(cluster))
    assert worker.is_running


@pytest.mark.fault("F3")
def test_a_cpu_worker_started_without_a_store_waits_for_it(cluster):
    cluster.server.kill9()
    worker = start_cpu_worker(cluster)
    cluster.wait_until(lambda: "Cannot connect" in worker.log)

    cluster.server.start()

    cluster.wait_until(lambda: has_janitor(cluster))
    assert worker.is_running
