"""The zombie: a worker that stops past its lease and goes on; and proof that its test can fail."""

import pytest

from queueing import store
from queueing.job import JobState, Outcome
from tests.queueing.conftest import LEASE_MS
from tests.support.audit import faults_in
from tests.support.jobs import QUEUE, TENANT, a_job, a_result, claim_one, enqueue

FENCE = " and job.fence == fence"


@pytest.fixture
def no_fence(monkeypatch):
    """Load the scripts with the check of the fence taken out."""
    real = store.script_text

    def without_fence(name, *, allow_oom):
        text = real(name, allow_oom=allow_oom)
        assert FENCE in text
        return text.replace(FENCE, "")

    monkeypatch.setattr(store, "script_text", without_fence)


def a_zombie_finishes_before_its_heir(queue, clock):
    """Let both finish, the zombie first; return what became of their results."""
    enqueue(queue, a_job("job_a"))
    zombie = claim_one(queue, "zombie")
    clock.advance(LEASE_MS)
    heir = claim_one(queue, "heir")
    return queue.finish_many(
        [
            Outcome(zombie.lease, a_result("of the zombie")),
            Outcome(heir.lease, a_result("of the heir")),
        ]
    )


@pytest.mark.fault("F16")
def test_a_zombies_result_is_refused_and_its_heirs_is_taken(queue, clock, client):
    states = a_zombie_finishes_before_its_heir(queue, clock)

    assert states == [None, JobState.COMPLETED]
    assert queue.get("job_a", TENANT).result == a_result("of the heir")
    assert queue.totals(QUEUE)["stale"] == 1
    assert faults_in(client) == []


@pytest.mark.usefixtures("no_fence")
def test_with_the_fence_off_the_zombie_would_win_and_be_noticed(make_queue, clock, client):
    queue = make_queue(lease_ms=LEASE_MS)

    states = a_zombie_finishes_before_its_heir(queue, clock)

    assert states == [JobState.COMPLETED, None]
    assert faults_in(client) == ["generate.fake: job_a was ended by claim 1 of 2"]
