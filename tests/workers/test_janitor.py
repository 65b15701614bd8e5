"""The janitor on a real server, under a clock that stands still."""

import threading

import pytest

from queueing.clock import ManualClock
from queueing.job import JANITOR_ID, JANITOR_QUEUE, JobState
from queueing.queue import JobQueue, QueueLimits
from tests.support.jobs import QUEUE, a_job, enqueue, state_of
from workers.janitor import SWEEP_EVERY_S, Janitor

LEASE_MS = 15_000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def queue(store, clock):
    return JobQueue(store, QueueLimits(lease_ms=LEASE_MS), clock=clock)


@pytest.fixture
def janitor(queue):
    return Janitor(queue)


def claim_janitor(queue):
    return queue.claim(JANITOR_QUEUE, "cpu1", 9)


def test_a_sweep_takes_back_what_a_dead_worker_held_and_ends_what_is_late(janitor, queue, clock):
    enqueue(queue, a_job("held"))
    queue.claim(QUEUE, "dead", 1)
    enqueue(queue, a_job("late", deadline_s=LEASE_MS / 1000))
    clock.advance(LEASE_MS + 1)

    num_moved = janitor.sweep()

    assert num_moved == 2
    assert state_of(queue, "held") is JobState.QUEUED
    assert state_of(queue, "late") is JobState.EXPIRED


def test_a_sweep_does_what_else_has_to_be_swept(queue):
    swept = []

    Janitor(queue, [lambda: swept.append("files"), lambda: swept.append("logs")]).sweep()

    assert swept == ["files", "logs"]


def test_its_job_is_due_again_a_little_after_it_ran(janitor, queue, clock):
    janitor.ensure()
    (claim,) = claim_janitor(queue)

    janitor.run(claim.lease)

    assert claim_janitor(queue) == []
    clock.advance(round(SWEEP_EVERY_S * 1000))
    assert len(claim_janitor(queue)) == 1


def test_any_number_of_janitors_have_one_job(queue):
    for _ in range(3):
        Janitor(queue).ensure()

    assert len(claim_janitor(queue)) == 1


def test_making_sure_of_a_job_that_runs_changes_nothing(janitor, queue):
    janitor.ensure()
    (claim,) = claim_janitor(queue)

    janitor.ensure()

    assert claim_janitor(queue) == []
    assert queue.release(claim.lease)


def test_a_janitors_job_that_was_wiped_comes_back(janitor, queue, store):
    janitor.ensure()
    store.flushall()

    janitor.ensure()

    assert [claim.lease.job_id for claim in claim_janitor(queue)] == [JANITOR_ID]


def test_its_job_outlives_any_number_of_workers_that_die_with_it(janitor, queue, clock):
    janitor.ensure()

    for _ in range(20):
        assert len(claim_janitor(queue)) == 1
        clock.advance(LEASE_MS + 1)
        queue.reap(JANITOR_QUEUE)

    assert len(claim_janitor(queue)) == 1


def test_janitors_that_sweep_at_once_move_each_job_once(queue, clock):
    enqueue(queue, *(a_job(deadline_s=1.0) for _ in range(200)))
    clock.advance(1_001)
    moved, together = [], threading.Barrier(4)

    def sweep():
        together.wait()
        moved.append(Janitor(queue).sweep())

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(moved) == 200
    assert queue.totals(QUEUE)["expired"] == 200
