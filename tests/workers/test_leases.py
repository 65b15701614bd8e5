import pytest

from tests.support.jobs import QUEUE, a_job, claim_one, enqueue
from workers.intake import Intake
from workers.leases import LeaseRenewer

LEASES = "{pm}:queue:generate.fake:leases"


class Steps:
    """A counter of steps that a test moves on."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        return self.count


@pytest.fixture
def intake(jobs):
    intake = Intake(jobs, "w1", slots=4)
    enqueue(jobs, a_job("job_a"))
    intake.accept(claim_one(jobs))
    return intake


@pytest.fixture
def lost():
    return []


def let_run_out(store):
    """Put the lease of job_a at its end."""
    store.zadd(LEASES, {"job_a": 0})


def test_a_lease_is_renewed_when_it_is_due(intake, store, lost):
    let_run_out(store)

    LeaseRenewer(intake, 0.0, on_lost=lost.append).renew_when_due()

    assert store.zscore(LEASES, "job_a") > 0
    assert lost == []


def test_a_lease_is_left_alone_before_it_is_due(intake, store, lost):
    let_run_out(store)

    LeaseRenewer(intake, 60.0, on_lost=lost.append).renew_when_due()

    assert store.zscore(LEASES, "job_a") == 0


def test_a_lost_lease_is_reported_once_and_held_no_more(intake, store, jobs, lost):
    (lease,) = intake.leases()
    let_run_out(store)
    jobs.claim(QUEUE, "w2", 1)
    renewer = LeaseRenewer(intake, 0.0, on_lost=lost.append)

    renewer.renew_when_due()
    renewer.renew_when_due()

    assert lost == [lease]
    assert intake.leases() == []


def test_work_that_stands_still_is_not_renewed(intake, store, lost):
    steps = Steps()
    renewer = LeaseRenewer(intake, 0.0, on_lost=lost.append, progress=steps)
    renewer.stalled_s()
    let_run_out(store)

    renewer.renew_when_due()

    assert store.zscore(LEASES, "job_a") == 0


def test_work_that_moves_again_is_renewed_again(intake, store, lost):
    steps = Steps()
    renewer = LeaseRenewer(intake, 0.0, on_lost=lost.append, progress=steps)
    renewer.stalled_s()
    let_run_out(store)
    renewer.renew_when_due()

    steps.count += 1
    renewer.renew_when_due()

    assert store.zscore(LEASES, "job_a") > 0
