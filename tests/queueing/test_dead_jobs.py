import pytest

from queueing.dead_jobs import DeadJobs
from queueing.errors import RequestError
from queueing.job import BATCH_QUEUE, BatchLine, JobKind, JobState, Priority
from queueing.pages import PageQuery
from tests.queueing.conftest import LEASE_MS
from tests.support.jobs import QUEUE, TENANT, a_job, claim_one, enqueue, finish, state_of

DEAD = "job_" + "d" * 22


@pytest.fixture
def queue(make_queue):
    """Return a queue whose jobs die with their first worker."""
    return make_queue(max_losses=1)


@pytest.fixture
def dead(client, queue):
    return DeadJobs(client, queue)


def die(queue, clock, job):
    enqueue(queue, job)
    claim_one(queue)
    clock.advance(LEASE_MS)
    queue.reap(QUEUE)


def ids(dead, **query):
    return [job.id for job in dead.page(PageQuery(**{"limit": 10, **query})).items]


def test_dead_jobs_of_all_tenants_are_listed_newest_first(dead, queue, clock):
    die(queue, clock, a_job("job_one", tenant="other", priority=Priority.BULK))
    die(queue, clock, a_job("job_two"))
    enqueue(queue, a_job("job_live"))

    (second, first) = dead.page(PageQuery(10)).items

    assert (first.id, first.tenant, first.priority, first.losses) == (
        "job_one",
        "other",
        Priority.BULK,
        1,
    )
    assert second.id == "job_two"
    assert ids(dead, after="job_two") == ["job_one"]


def test_a_retry_is_a_copy_under_a_new_id_and_the_dead_job_stays_dead(dead, queue, clock):
    job = a_job(
        DEAD, deadline_s=99, tenant=TENANT, metadata='{"a":"b"}', cost=7, kind=JobKind.EMBED
    )
    die(queue, clock, job)

    copy = dead.retry(DEAD)
    claim = claim_one(queue)

    assert copy.created
    assert copy.job_id != DEAD
    assert claim.lease.job_id == copy.job_id
    assert claim.kind is JobKind.EMBED
    assert (claim.request, claim.remaining_ms) == (job.request, None)
    assert state_of(queue, DEAD) is JobState.DEAD
    assert queue.get(copy.job_id, TENANT).metadata == '{"a":"b"}'


def test_a_retry_that_is_repeated_makes_no_second_copy(dead, queue, clock):
    die(queue, clock, a_job(DEAD))
    first = dead.retry(DEAD)

    again = dead.retry(DEAD)

    assert (again.job_id, again.created) == (first.job_id, False)


def test_a_job_that_is_not_dead_can_be_neither_retried_nor_dropped(dead, queue):
    enqueue(queue, a_job(DEAD))
    finish(queue, claim_one(queue))

    assert dead.retry(DEAD) is None
    assert not dead.drop(DEAD)
    assert dead.retry("job_unknown") is None
    assert not dead.drop("job_unknown")


def test_a_dropped_job_leaves_nothing(dead, queue, clock, client):
    die(queue, clock, a_job(DEAD))

    assert dead.drop(DEAD)

    assert ids(dead) == []
    assert list(client.scan_iter(f"*{DEAD}*")) == []


def test_the_line_of_a_batch_is_not_retried(dead, queue, clock):
    enqueue(queue, a_job("batch_one", queue=BATCH_QUEUE))
    (tick,) = queue.claim(BATCH_QUEUE, "w", 1)
    line = BatchLine("batch_one", 1, "a", tick.lease.fence)
    die(queue, clock, a_job(DEAD, batch=line))

    with pytest.raises(RequestError):
        dead.retry(DEAD)


def test_a_job_whose_prompt_has_expired_is_not_retried(dead, queue, clock, client):
    die(queue, clock, a_job(DEAD))
    client.delete(f"{{pm}}:job:{DEAD}:request")

    with pytest.raises(RequestError):
        dead.retry(DEAD)


def test_the_list_goes_with_the_records(queue, clock, client):
    die(queue, clock, a_job(DEAD))

    assert 0 < client.pttl("{pm}:dead") <= 604_800_000
