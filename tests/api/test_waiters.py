from threading import Event, Thread

import pytest

from api.waiters import Waiter, Waiters
from queueing.store import connect

CHANNEL = "ended"


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def waiters(client):
    """Return a process's waiters with room for one."""
    waiters = Waiters(client, [CHANNEL], max_waiters=1)
    yield waiters
    waiters.close()
    waiters.join()


def test_a_wake_that_comes_as_the_time_runs_out_is_not_lost():
    waiter, is_over = Waiter(), Event()
    seen, woken = 0, 0

    def look():
        nonlocal seen
        while not is_over.is_set():
            seen += waiter.wait(0.00001)

    looking = Thread(target=look)
    looking.start()
    for _ in range(2_000):
        woken += 1
        waiter.wake()
        while seen < woken and looking.is_alive():
            is_over.wait(0.00001)
    is_over.set()
    looking.join()

    assert seen == woken


def test_a_waiter_for_several_jobs_takes_one_place_and_is_woken_by_each(waiters, client):
    with waiters.waiting_for("job_a", "job_b") as waiter, waiters.waiting_for("job_c") as other:
        subscribed = waiter.wait(5)
        client.publish(CHANNEL, "job_b")
        by_the_last = waiter.wait(5)
        client.publish(CHANNEL, "job_x job_a")
        by_the_first = waiter.wait(5)

    assert (subscribed, by_the_last, by_the_first) == (True, True, True)
    assert other is None
    with waiters.waiting_for("job_c") as next_one:
        assert next_one is not None
