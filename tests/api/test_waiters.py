from threading import Event, Thread

from api.waiters import Waiter


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
