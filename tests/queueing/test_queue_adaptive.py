"""Admission that follows the waits: less is taken while jobs wait too long."""

import pytest

from queueing.errors import QueueShed
from queueing.job import Priority
from tests.support.jobs import QUEUE, a_job, claim_one, enqueue, finish

TARGET_MS = 1_000


@pytest.fixture
def queue(make_queue):
    """Return a queue that wants its jobs to wait a second at most."""
    return make_queue(target_wait_ms=TARGET_MS)


def offer(queue, clock, seconds, wait_ms, priority=Priority.STANDARD):
    """Offer ten jobs a second, serve each after a wait; return the share that was taken."""
    num_taken = 0
    for _ in range(seconds * 10):
        try:
            queue.enqueue(a_job(priority=priority))
        except QueueShed:
            clock.advance(100)
            continue
        num_taken += 1
        clock.advance(wait_ms)
        finish(queue, claim_one(queue))
        clock.advance(max(0, 100 - wait_ms))
    return num_taken / (seconds * 10)


def test_while_waits_are_short_all_is_taken(queue, clock):
    assert offer(queue, clock, seconds=20, wait_ms=50) == 1.0


def test_while_waits_are_too_long_less_and_less_is_taken(queue, clock):
    offer(queue, clock, seconds=5, wait_ms=3_000)

    assert offer(queue, clock, seconds=5, wait_ms=3_000) < 0.5


def test_a_little_is_always_taken_or_nobody_would_learn_that_waits_are_short_again(queue, clock):
    offer(queue, clock, seconds=30, wait_ms=3_000)

    assert offer(queue, clock, seconds=10, wait_ms=3_000) > 0.0


def test_when_waits_are_short_again_all_is_taken_again(queue, clock):
    offer(queue, clock, seconds=10, wait_ms=3_000)

    offer(queue, clock, seconds=60, wait_ms=50)

    assert offer(queue, clock, seconds=5, wait_ms=50) == 1.0


def test_realtime_work_is_taken_whatever_the_waits(queue, clock):
    offer(queue, clock, seconds=10, wait_ms=3_000)

    assert offer(queue, clock, seconds=5, wait_ms=50, priority=Priority.REALTIME) == 1.0


def test_jobs_that_nobody_claims_count_by_their_age(queue, clock):
    enqueue(queue, a_job())
    refused = 0

    for _ in range(100):
        clock.advance(1_000)
        try:
            queue.enqueue(a_job())
        except QueueShed:
            refused += 1

    assert refused > 50


def test_without_a_target_waits_change_nothing(make_queue, clock):
    queue = make_queue()

    assert offer(queue, clock, seconds=5, wait_ms=3_000) == 1.0
    assert queue.claim(QUEUE, "w1", 1) == []
