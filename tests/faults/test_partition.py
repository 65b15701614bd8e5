"""F18: a worker and its store cut off from each other, in each direction and in both."""

from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.support.cluster import Cluster, WorkerProcess
from tests.support.ledger import ALL_IS_WELL
from tests.support.load import amount
from tests.support.partition import Link, ProxyLink, Way, make_link

RECOVERY_S = 10.0


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(max_losses=1_000)


@pytest.fixture
def link(cluster, chance) -> Iterator[Link]:
    link = make_link(cluster, chance)
    yield link
    cluster.end_workers()
    link.close()


def submit(cluster: Cluster, what: str, count: int) -> None:
    for number in range(count):
        cluster.ledger.submit(cluster.queue, f"{what} {number}", 20)


def let_both_work(cluster: Cluster, worker: WorkerProcess) -> None:
    """Keep both workers busy until this one has finished a job."""
    before = num_finished(worker)

    def has_finished_one() -> bool:
        submit(cluster, "more", 1)
        return num_finished(worker) > before

    cluster.wait_until(has_finished_one, RECOVERY_S)


def num_finished(worker: WorkerProcess) -> int:
    return len(worker.events("job finished"))


def cut_and_heal(cluster: Cluster, link: Link, ways: Iterable[Way]) -> None:
    """Cut one of two workers off in the middle of its jobs, in one way after the other.

    The other one finishes what there is; healed, the first takes part again.
    """
    far = cluster.start_worker(
        "far", redis_url=link.url, launcher=link.launcher, redis_allow_insecure="true", step_ms=5
    )
    near = cluster.start_worker("near", step_ms=5)
    for way in ways:
        let_both_work(cluster, far)
        submit(cluster, way, amount(quick=24, soak=1_000))
        link.cut(way)
        cluster.wait_until_settled()
        link.heal()
    let_both_work(cluster, far)
    cluster.wait_until_settled()
    assert [cluster.drain(worker) for worker in (far, near)] == [0, 0]


@pytest.mark.fault("F18")
@pytest.mark.timeout(amount(quick=90, soak=900))
def test_a_worker_cut_off_any_way_is_replaced_and_returns(cluster, link):
    cut_and_heal(cluster, link, list(Way)[: amount(quick=2, soak=len(Way))])

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL


@pytest.mark.fault("F18")
def test_where_there_are_no_namespaces_a_proxy_cuts_one_way_too(cluster, chance):
    link = ProxyLink(cluster, chance)

    cut_and_heal(cluster, link, [Way.DEAF])

    link.close()
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
