"""F31, what of it there is: a model folder with other bytes than its manifest says serves nobody.

A version beside another, and the way back by rule, which the row also asks for, do not exist.
"""

import os
import sys

import pytest

from queueing.job import Priority, generate_queue
from tests.support.cluster import WorkerProcess
from tests.support.jobs import a_job
from tests.support.local_stack import write_named_model


@pytest.mark.fault("F31")
def test_a_worker_on_a_folder_with_a_changed_byte_ends_before_it_claims(cluster):
    folder = write_named_model(cluster.folder / "tiny", "tiny")
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    cluster.queue.enqueue(a_job(queue=generate_queue("tiny")))

    environment = {
        "PATH": os.defpath,
        "HOME": str(cluster.folder),
        "PROMPTMILL_REDIS_URL": cluster.server.url,
    }
    command = [sys.executable, "-m", "ops.cli", "worker", "engine", "--model", str(folder)]
    worker = WorkerProcess(command, environment, cluster.folder / "worker.log")
    cluster.workers.append(worker)

    assert worker.wait() == 1
    assert "model.safetensors: changed" in worker.log
    depth = cluster.queue.depth(generate_queue("tiny"))
    assert (depth.ready[Priority.STANDARD], depth.leased) == (1, 0)
