"""Jobs that take their worker down, and the innocent ones beside them."""

import pytest

from queueing.job import JobState
from tests.support.cluster import Cluster, WorkerProcess
from tests.support.fake_engine import EXITS, HANGS, KILLS
from tests.support.ledger import ALL_IS_WELL
from tests.support.load import amount


class Supervisor:
    """Starts a worker again whenever it has ended, as a service manager does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._worker: WorkerProcess | None = None
        self.num_starts = 0

    def look(self) -> None:
        if self._worker is None or not self._worker.is_running:
            self._worker = self._cluster.start_worker()
            self.num_starts += 1


@pytest.mark.fault("F22")
@pytest.mark.timeout(amount(quick=120, soak=1_800))
@pytest.mark.parametrize("deed", [KILLS, EXITS, HANGS])
def test_a_poison_job_dies_alone_after_three_losses(make_cluster, deed):
    cluster = make_cluster(watchdog_s=1.5)
    for number in range(amount(quick=60, soak=1_000)):
        cluster.ledger.submit(cluster.queue, f"innocent {number}", 20)
    poison = cluster.ledger.submit(cluster.queue, f"poison {deed}", 20, JobState.DEAD)
    for number in range(amount(quick=60, soak=1_000)):
        cluster.ledger.submit(cluster.queue, f"later {number}", 20)
    supervisor = Supervisor(cluster)

    def all_ended():
        supervisor.look()
        return cluster.num_ended() == len(cluster.ledger.entries)

    cluster.wait_until(all_ended, limit_s=100)

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.queue.get(poison, "default").losses == 3
    assert supervisor.num_starts == 4
