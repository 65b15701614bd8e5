import pytest
from prometheus_client import CollectorRegistry

from ops.metrics import WorkerMetrics
from queueing.job import JobState
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard, SwitchWatch
from tests.support.jobs import QUEUE, a_job, claim_one, enqueue, finish, state_of
from tests.support.waiting import wait_until
from workers.intake import Intake
from workers.standby import Standby

LONG_S = 60.0


@pytest.fixture
def board(store):
    return SwitchBoard(store)


@pytest.fixture
def intake(jobs):
    return Intake(jobs, "w1", slots=4)


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def dropped():
    return []


@pytest.fixture
def standby_of(board, intake, registry, dropped):
    def make(grace_s, watched=board):
        return Standby(
            intake,
            SwitchWatch(watched, lambda _flip: None),
            grace_s,
            tell=WorkerMetrics(registry).draining.labels("w1").set,
            drop=lambda lease: dropped.append(lease.job_id),
        )

    return make


def hold(jobs, intake, job_id="job_a"):
    enqueue(jobs, a_job(job_id))
    claim = claim_one(jobs)
    intake.accept(claim)
    return claim


def draining(registry):
    return registry.get_sample_value("promptmill_worker_draining", {"worker": "w1"})


def test_a_worker_on_standby_claims_nothing_until_the_switch_is_off(
    board, intake, registry, standby_of
):
    standby = standby_of(LONG_S)
    board.flip(Switch.DRAIN, 1)
    standby.obey()
    while_on = (intake.room().limit, draining(registry))

    board.flip(Switch.DRAIN, None)
    wait_until(lambda: standby.obey() or intake.room().limit == 4, limit_s=2.0)

    assert while_on == (0, 1)
    assert draining(registry) == 0


def test_what_runs_may_end_within_the_grace(board, jobs, intake, standby_of, dropped):
    claim = hold(jobs, intake)
    standby = standby_of(LONG_S)
    board.flip(Switch.DRAIN, 1)

    standby.obey()
    standby.obey()

    assert dropped == []
    assert finish(jobs, claim) is JobState.COMPLETED


def test_what_runs_longer_than_the_grace_is_handed_back_without_a_loss(
    board, jobs, intake, standby_of, dropped
):
    hold(jobs, intake)
    standby = standby_of(grace_s=0.0)
    board.flip(Switch.DRAIN, 1)

    standby.obey()
    standby.obey()

    assert dropped == ["job_a"]
    assert intake.leases() == []
    (again,) = jobs.claim(QUEUE, "w2", 1)
    assert again.losses == 0


def test_a_job_that_somebody_else_holds_by_now_is_dropped_too(
    board, jobs, intake, standby_of, dropped
):
    claim = hold(jobs, intake)
    jobs.release(claim.lease)
    claim_one(jobs, "w2")
    standby = standby_of(grace_s=0.0)
    board.flip(Switch.DRAIN, 1)

    standby.obey()
    standby.obey()

    assert dropped == ["job_a"]
    assert state_of(jobs, "job_a") is JobState.RUNNING


def test_a_worker_that_was_told_to_end_does_not_come_back_from_standby(board, intake, standby_of):
    standby = standby_of(LONG_S)
    board.flip(Switch.DRAIN, 1)
    standby.obey()
    intake.close()

    board.flip(Switch.DRAIN, None)
    wait_until(lambda: standby.obey() or not intake.is_paused, limit_s=2.0)

    assert intake.room().limit == 0


def test_a_worker_that_starts_while_all_drain_stands_by_at_once(redis_url, intake, standby_of):
    with connect(redis_url) as operator:
        SwitchBoard(operator).flip(Switch.DRAIN, 1)

    standby_of(LONG_S).obey()

    assert intake.room().limit == 0
