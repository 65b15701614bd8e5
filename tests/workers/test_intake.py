import pytest

from queueing.job import JobState, Lease, Priority
from queueing.transport import Room
from tests.support.jobs import QUEUE, a_job, claim_one, enqueue, finish, state_of
from workers.intake import Intake


@pytest.fixture
def intake(jobs):
    """Return the intake of a worker with two slots."""
    return Intake(jobs, "w1", slots=2)


def hold(intake, *priorities):
    """Have the intake hold one claim of each priority."""
    for priority in priorities:
        enqueue(intake.queue, a_job(priority=priority))
        intake.accept(claim_one(intake.queue, at_least=priority))


def test_an_idle_worker_takes_any_work_for_all_its_slots(intake):
    assert intake.room() == Room(2, Priority.BULK, held=0)


def test_what_it_holds_leaves_less_room(intake):
    hold(intake, Priority.BULK)

    assert intake.room() == Room(1, Priority.BULK, held=1)


@pytest.mark.parametrize(
    ("least", "takes"),
    [(Priority.BULK, Priority.STANDARD), (Priority.STANDARD, Priority.REALTIME)],
)
def test_a_full_worker_takes_what_is_more_urgent_than_its_least_urgent(intake, least, takes):
    hold(intake, Priority.REALTIME, least)

    assert intake.room() == Room(1, takes, held=2)


def test_a_worker_full_of_realtime_takes_nothing(intake):
    hold(intake, Priority.REALTIME, Priority.REALTIME)

    assert intake.room().listens_to is None


def test_urgent_work_comes_on_top_until_it_fills_all_slots(intake):
    hold(intake, Priority.BULK, Priority.BULK, Priority.REALTIME)

    one_more = intake.room()
    hold(intake, Priority.STANDARD)
    most_urgent_only = intake.room()
    hold(intake, Priority.REALTIME)

    assert one_more == Room(1, Priority.STANDARD, held=3)
    assert most_urgent_only == Room(1, Priority.REALTIME, held=4)
    assert intake.room().listens_to is None


def test_an_eighth_of_the_slots_is_left_to_what_was_claimed_before(jobs):
    intake = Intake(jobs, "w1", slots=8)
    hold(intake, *[Priority.BULK] * 8)

    assert intake.room() == Room(7, Priority.STANDARD, held=8)


def test_a_closed_intake_takes_nothing(intake):
    intake.close()

    assert intake.room().listens_to is None


def test_nothing_is_taken_beside_a_job_that_must_run_alone(intake, store):
    enqueue(intake.queue, a_job(max_losses=2))
    doomed = claim_one(intake.queue)
    store.zadd("{pm}:queue:generate.fake:leases", {doomed.lease.job_id: 0})  # its time is over

    intake.accept(claim_one(intake.queue))

    assert intake.room().listens_to is None


def test_a_released_job_is_no_longer_held(intake):
    enqueue(intake.queue, a_job("job_a"))
    claim = claim_one(intake.queue)
    intake.accept(claim)

    intake.release(claim.lease)

    assert intake.leases() == []
    assert state_of(intake.queue, "job_a") is JobState.QUEUED


def test_a_dropped_task_ends_its_job_as_cancelled(intake):
    enqueue(intake.queue, a_job("job_a"))
    claim = claim_one(intake.queue)
    intake.accept(claim)

    intake.settle(claim.lease, requeue=False)

    assert state_of(intake.queue, "job_a") is JobState.CANCELLED


def test_a_requeued_task_hands_its_job_back(intake):
    enqueue(intake.queue, a_job("job_a"))
    claim = claim_one(intake.queue)
    intake.accept(claim)

    intake.settle(claim.lease, requeue=True)

    assert state_of(intake.queue, "job_a") is JobState.QUEUED


def test_settling_a_finished_job_does_nothing(intake):
    enqueue(intake.queue, a_job("job_a"))
    claim = claim_one(intake.queue)
    intake.accept(claim)
    finish(intake.queue, claim)
    intake.forget(claim.lease)

    intake.settle(claim.lease, requeue=False)

    assert state_of(intake.queue, "job_a") is JobState.COMPLETED


def test_settling_a_job_that_others_ended_does_nothing(intake):
    enqueue(intake.queue, a_job("job_a"))
    claim = claim_one(intake.queue)
    intake.accept(claim)
    finish(intake.queue, claim)

    intake.settle(claim.lease, requeue=False)

    assert state_of(intake.queue, "job_a") is JobState.COMPLETED


def test_cancelling_reaches_the_lease_of_the_job(intake):
    cancelled: list[Lease] = []
    intake.on_cancel(cancelled.append)
    hold(intake, Priority.BULK, Priority.BULK)
    first, _second = intake.leases()

    intake.cancel(first.job_id)

    assert cancelled == [first]


def test_a_claim_call_keeps_its_name_until_it_was_answered(intake):
    before = intake.call_id(QUEUE)

    again = intake.call_id(QUEUE)
    intake.answered(QUEUE)

    assert again == before
    assert intake.call_id(QUEUE) != before


def test_reasserting_renews_what_is_held(intake, store):
    hold(intake, Priority.BULK)
    (lease,) = intake.leases()
    store.zadd("{pm}:queue:generate.fake:leases", {lease.job_id: 0})

    intake.reassert()

    assert intake.queue.claim(QUEUE, "w2", 1) == []
