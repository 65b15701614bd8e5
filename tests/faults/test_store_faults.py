"""A store that dies, hangs, is slow, is full or far away, under workers that go on."""

import threading

import pytest

from queueing.errors import StoreUnavailable
from queueing.job import JobState
from tests.support.audit import faults_in
from tests.support.jobs import QUEUE
from tests.support.ledger import ALL_IS_WELL
from tests.support.load import amount
from tests.support.proxy import Weather


def submit_through(cluster, count, chance):
    """Submit jobs whatever happens to the store; what is not acknowledged is not written down."""
    num_refused = 0
    for number in range(count):
        try:
            cluster.ledger.submit(cluster.queue, f"prompt {number}", chance.randint(1, 30))
        except StoreUnavailable:
            num_refused += 1
    return num_refused


@pytest.mark.fault("F3")
@pytest.mark.timeout(amount(quick=90, soak=1_800))
def test_a_store_killed_under_load_loses_nothing_it_acknowledged(make_cluster, chance):
    cluster = make_cluster(max_losses=1_000)
    workers = [cluster.start_worker(f"w{number}") for number in range(2)]
    for _ in range(amount(quick=3, soak=5)):
        submit_through(cluster, amount(quick=200, soak=4_000), chance)
        cluster.server.kill9()
        with pytest.raises(StoreUnavailable):
            cluster.ledger.submit(cluster.queue, "while it is down", 5)
        cluster.server.start()
        claimed = cluster.queue.totals(QUEUE).get("claimed", 0)
        submit_through(cluster, 20, chance)
        cluster.wait_until(
            lambda claimed=claimed: cluster.queue.totals(QUEUE).get("claimed", 0) > claimed,
            limit_s=10,
        )

    cluster.wait_until_settled(limit_s=60)
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert [cluster.drain(worker) for worker in workers] == [0, 0]


@pytest.mark.fault("F4")
def test_a_torn_tail_loses_only_what_was_in_it(cluster, chance):
    for number in range(200):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", 3)
    cluster.queue.claim(QUEUE, "gone", 20)
    cluster.server.stop()
    (tail,) = (cluster.folder / "redis" / "appendonlydir").glob("*.incr.aof")
    content = tail.read_bytes()
    tail.write_bytes(content[: -chance.randint(1, 200)])

    cluster.server.start()

    assert faults_in(cluster.client) == []
    known = [job_id for job_id in cluster.ledger.entries if cluster.queue.get(job_id, "default")]
    assert len(known) >= 199
    assert cluster.queue.depth(QUEUE).leased <= 20


@pytest.mark.fault("F5")
@pytest.mark.timeout(amount(quick=60, soak=300))
def test_while_the_store_refuses_running_batches_go_on_and_deliver_afterwards(cluster, proxy):
    worker = cluster.start_worker(redis_url=proxy.url, step_ms=20)
    for number in range(8):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", 30)
    cluster.wait_until(lambda: cluster.num_running() == 8)

    proxy.refuse()
    cluster.wait_until(lambda: worker.events("store lost"))
    away = cluster.queue.totals(QUEUE)
    proxy.accept()
    cluster.wait_until_settled()

    assert away.get("completed", 0) == 0
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.queue.totals(QUEUE)["claimed"] == 8
    assert cluster.drain(worker) == 0


@pytest.mark.fault("F5")
def test_a_store_that_is_away_is_not_logged_more_than_twice_a_second(cluster, proxy):
    worker = cluster.start_worker(redis_url=proxy.url, step_ms=20)
    cluster.ledger.submit(cluster.queue, "prompt", 60)
    cluster.wait_until(lambda: cluster.num_running() == 1)

    proxy.refuse()
    cluster.wait_until(lambda: len(worker.events("store lost")) >= 4)
    proxy.accept()

    first, *_, last = (event["ts"] for event in worker.events("store lost")[:4])
    assert seconds(last) - seconds(first) >= 1.4


def seconds(timestamp):
    """Read the seconds within the hour."""
    _, minutes, rest = timestamp.split(":")
    return int(minutes) * 60 + float(rest.rstrip("Z"))


@pytest.mark.fault("F6")
@pytest.mark.timeout(amount(quick=60, soak=600))
def test_a_store_that_hangs_past_the_leases_loses_nothing(make_cluster, chance):
    cluster = make_cluster(max_losses=1_000)
    workers = [cluster.start_worker(f"w{number}", step_ms=5) for number in range(2)]
    submit_through(cluster, amount(quick=200, soak=1_000), chance)
    cluster.wait_until(lambda: cluster.num_running() > 0)

    cluster.server.suspend()
    threading.Event().wait(amount(quick=2.5, soak=30.0))  # longer than a lease
    cluster.server.resume()
    cluster.wait_until_settled(limit_s=40)

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert [cluster.drain(worker) for worker in workers] == [0, 0]


@pytest.mark.fault("F7")
@pytest.mark.timeout(amount(quick=90, soak=600))
def test_a_slow_store_whose_replies_break_off_loses_nothing(make_cluster, proxy_to):
    # A lease has to outlast a reconnect or two, as the default of 15 s does.
    cluster = make_cluster(lease_s=10.0, renew_s=2.0)
    proxy = proxy_to(cluster)
    worker = cluster.start_worker(redis_url=proxy.url, step_ms=5)
    cluster.wait_until(lambda: "ready" in worker.log)
    proxy.set_weather(Weather(delay_s=(0.005, amount(quick=0.05, soak=0.25)), reset_share=0.05))
    for number in range(amount(quick=60, soak=500)):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", 5)

    cluster.wait_until_settled(limit_s=60)

    proxy.set_weather(Weather())
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL


@pytest.mark.fault("F8")
def test_a_store_out_of_memory_admits_nothing_and_completes_what_it_has(cluster):
    worker = cluster.start_worker(step_ms=20)
    cluster.wait_until(lambda: "ready" in worker.log)
    for number in range(20):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", 10)
    cluster.client.config_set("maxmemory", 1)

    with pytest.raises(StoreUnavailable):
        cluster.ledger.submit(cluster.queue, "one too many", 10)
    cluster.wait_until_settled()

    cluster.client.config_set("maxmemory", 0)
    cluster.ledger.submit(cluster.queue, "room again", 10)
    cluster.wait_until_settled(limit_s=5)
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.drain(worker) == 0


@pytest.mark.fault("F8")
def test_a_worker_started_in_a_store_out_of_memory_waits_for_room(cluster):
    cluster.ledger.submit(cluster.queue, "prompt", 10)
    cluster.client.config_set("maxmemory", 1)
    worker = cluster.start_worker()
    cluster.wait_until(lambda: "Trying to re-establish" in worker.log)

    cluster.client.config_set("maxmemory", 0)

    cluster.wait_until_settled()
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL


@pytest.mark.fault("F17")
def test_two_of_everything_do_each_thing_once(cluster, chance):
    workers = [cluster.start_worker(f"w{number}") for number in range(2)]
    for number in range(amount(quick=200, soak=5_000)):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", chance.randint(1, 20))
    for number in range(50):
        cluster.ledger.submit(cluster.queue, f"late {number}", 5, JobState.EXPIRED, deadline_s=0.0)

    sweepers = [threading.Thread(target=sweep, args=(cluster,)) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    cluster.wait_until_settled()
    for sweeper in sweepers:
        sweeper.join()

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    totals = cluster.queue.totals(QUEUE)
    assert totals["expired"] == 50
    assert totals["claimed"] == totals["completed"]
    assert [cluster.drain(worker) for worker in workers] == [0, 0]


def sweep(cluster):
    """Do what a janitor does, again and again."""
    for _ in range(100):
        cluster.queue.reap(QUEUE)
        cluster.queue.expire(QUEUE)
