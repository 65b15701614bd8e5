"""Engine workers that die, hang, stop and come back."""

import signal

import pytest

from queueing.failpoints import EXIT_STATUS, Failpoint
from queueing.job import JobState
from tests.support.cluster import LEASE_S
from tests.support.jobs import QUEUE
from tests.support.ledger import ALL_IS_WELL
from tests.support.load import amount


@pytest.mark.fault("F1")
@pytest.mark.timeout(amount(quick=90, soak=7_200))
def test_workers_killed_at_random_lose_nothing(make_cluster, chance):
    cluster = make_cluster(max_losses=1_000)
    num_jobs = amount(quick=2_000, soak=50_000)
    for number in range(num_jobs):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", chance.randint(1, 40))
    workers = [cluster.start_worker(f"w{number}") for number in range(2)]

    num_kills = amount(quick=20, soak=500)
    for kill in range(num_kills):
        target = num_jobs * (kill + 1) // (num_kills + 2)
        cluster.wait_until(lambda target=target: cluster.num_ended() >= target, limit_s=60)
        victim = chance.randrange(2)
        workers[victim].kill9()
        workers[victim] = cluster.start_worker(f"w{victim}")
    cluster.wait_until_settled(limit_s=60)

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    totals = cluster.queue.totals(QUEUE)
    assert totals["claimed"] - num_jobs <= num_kills * 9
    assert [cluster.drain(worker) for worker in workers] == [0, 0]


@pytest.mark.fault("F2")
@pytest.mark.parametrize("point", [point for point in Failpoint if point is not Failpoint.ENQUEUED])
def test_a_worker_may_die_at_any_point(cluster, point):
    for number in range(30):
        cluster.ledger.submit(
            cluster.queue, f"prompt {number}", 10, webhook_url="https://example.com/"
        )
    doomed = cluster.start_worker(failpoint=f"{point.value}:2")

    assert doomed.wait() == EXIT_STATUS
    cluster.start_worker()
    cluster.wait_until_settled()

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    deliveries = cluster.queue.claim("webhooks", "cpu", 99)
    assert len(deliveries) == 30
    assert sum(cluster.queue.depth("webhooks").ready.values()) == 0


@pytest.mark.fault("F16")
def test_the_results_of_a_zombie_are_refused(cluster):
    zombie = cluster.start_worker("zombie", step_ms=20)
    for number in range(8):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", 30)
    cluster.wait_until(lambda: cluster.num_running() == 8)
    zombie.signal(signal.SIGSTOP)

    cluster.start_worker("heir")
    cluster.wait_until_settled()
    zombie.signal(signal.SIGCONT)
    cluster.drain(zombie)

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.queue.totals(QUEUE)["completed"] == 8


@pytest.mark.fault("F1")
def test_a_dead_workers_jobs_are_back_within_a_lease_and_a_little(cluster):
    doomed = cluster.start_worker("doomed", step_ms=20)
    cluster.ledger.submit(cluster.queue, "prompt", 500)
    cluster.wait_until(lambda: cluster.num_running() == 1)
    heir = cluster.start_worker("heir")
    cluster.wait_until(lambda: "ready" in heir.log)
    doomed.kill9()

    cluster.wait_until(lambda: cluster.queue.totals(QUEUE)["claimed"] == 2, limit_s=LEASE_S + 2)

    cluster.wait_until_settled()
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL


@pytest.mark.fault("F14")
def test_a_worker_told_to_stop_finishes_what_it_can_and_hands_back_the_rest(make_cluster):
    cluster = make_cluster(grace_s=1.0, lease_s=30.0, renew_s=5.0)
    worker = cluster.start_worker(step_ms=10)
    short = [cluster.ledger.submit(cluster.queue, f"s{number}", 5) for number in range(4)]
    for number in range(4):
        cluster.ledger.submit(cluster.queue, f"l{number}", 2_000)
    cluster.wait_until(lambda: cluster.num_running() == 8)

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert [cluster.queue.get(job_id, "default").state for job_id in short] == [
        JobState.COMPLETED
    ] * 4
    claims = cluster.queue.claim(QUEUE, "test", 9)
    assert [claim.losses for claim in claims] == [0] * 4


@pytest.mark.fault("F15")
def test_a_second_signal_ends_the_grace(make_cluster):
    cluster = make_cluster(grace_s=60.0)
    worker = cluster.start_worker(step_ms=10)
    cluster.ledger.submit(cluster.queue, "prompt", 3_000)
    cluster.wait_until(lambda: cluster.num_running() == 1)

    worker.signal(signal.SIGTERM)
    cluster.wait_until(lambda: worker.events("worker draining"))
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    (claim,) = cluster.queue.claim(QUEUE, "test", 9)
    assert claim.losses == 0
