"""Nothing grows: after many jobs, store and worker are as they were."""

from dataclasses import dataclass

import psutil
import pytest

from tests.support.cluster import Cluster, WorkerProcess
from tests.support.jobs import QUEUE
from tests.support.ledger import a_prompt_job
from tests.support.load import amount

MIB = 2**20
NUM_BELLS = 4  # bells, an inbox and the last answer to a claim come and go


@dataclass(frozen=True, slots=True)
class Size:
    """What store and worker take up."""

    num_keys: int
    store_bytes: int
    worker_bytes: int
    num_files: int


def size_of(cluster: Cluster, worker: WorkerProcess) -> Size:
    process = psutil.Process(worker.pid)
    return Size(
        cluster.client.dbsize(),
        int(cluster.client.info("memory")["used_memory_dataset"]),
        process.memory_info().rss,
        process.num_fds(),
    )


def run_jobs(cluster: Cluster, count: int) -> None:
    """Run small jobs through, with webhooks and deadlines among them, and forget them all."""
    before = cluster.num_ended()
    for first in range(0, count, 250):
        cluster.queue.enqueue_many(
            [
                a_prompt_job(f"prompt {number}", 1, deadline_s=None if number % 3 else 600)
                for number in range(first, first + 250)
            ]
        )
    cluster.wait_until(lambda: cluster.num_ended() == before + count, limit_s=300)
    cluster.wait_until(lambda: not any(cluster.client.scan_iter("{pm}:job:*", count=10_000)))


@pytest.mark.fault("F32")
@pytest.mark.timeout(amount(quick=120, soak=3_600))
def test_after_many_jobs_everything_is_as_small_as_before(make_cluster):
    cluster = make_cluster(slots=64, result_ttl_s=1, record_ttl_s=1, idempotency_ttl_s=1)
    worker = cluster.start_worker(step_ms=0)
    run_jobs(cluster, 1_000)
    base = size_of(cluster, worker)

    run_jobs(cluster, amount(quick=5_000, soak=100_000))

    # The server gives tables and buffers back by and by.
    cluster.wait_until(lambda: size_of(cluster, worker).store_bytes <= base.store_bytes + MIB)
    after = size_of(cluster, worker)
    assert after.num_keys <= base.num_keys + NUM_BELLS
    assert after.worker_bytes <= base.worker_bytes * 1.05 + 2 * MIB
    assert after.num_files <= base.num_files
    assert cluster.queue.totals(QUEUE)["completed"] == cluster.queue.totals(QUEUE)["submitted"]
    assert cluster.drain(worker) == 0
