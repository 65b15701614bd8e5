import pytest

from queueing.errors import RequestError
from queueing.job import JobState
from queueing.job_list import JobList
from queueing.pages import PageQuery
from tests.queueing.conftest import LEASE_MS
from tests.support.jobs import QUEUE, TENANT, a_job, claim_one, enqueue, finish


@pytest.fixture
def jobs(client, queue):
    return JobList(client, queue)


def ids(jobs, state, tenant=TENANT, **query):
    page = jobs.page(tenant, state, PageQuery(**{"limit": 10, **query}))
    return [record.id for record in page.items]


def listed_in(jobs, job_id):
    return [state for state in JobState if job_id in ids(jobs, state)]


def test_a_job_is_listed_in_the_state_it_is_in(jobs, queue, clock):
    enqueue(queue, a_job("job_one"))
    queued = listed_in(jobs, "job_one")
    claim = claim_one(queue)
    running = listed_in(jobs, "job_one")
    queue.release(claim.lease)
    released = listed_in(jobs, "job_one")
    claim_one(queue)
    clock.advance(LEASE_MS)
    queue.reap(QUEUE)
    lost = listed_in(jobs, "job_one")
    finish(queue, claim_one(queue))

    assert (queued, running, released, lost, listed_in(jobs, "job_one")) == (
        [JobState.QUEUED],
        [JobState.RUNNING],
        [JobState.QUEUED],
        [JobState.QUEUED],
        [JobState.COMPLETED],
    )


@pytest.mark.parametrize("state", [JobState.EXPIRED, JobState.CANCELLED, JobState.DEAD])
def test_every_end_is_listed(jobs, queue, make_queue, clock, state):
    queue = make_queue(max_losses=1)
    deadline_s = 1.0 if state is JobState.EXPIRED else None
    enqueue(queue, a_job("job_one", deadline_s=deadline_s))
    if state is JobState.DEAD:
        claim_one(queue)
    clock.advance(LEASE_MS)
    if state is JobState.CANCELLED:
        queue.cancel("job_one", TENANT)
    queue.expire(QUEUE)
    queue.reap(QUEUE)

    assert listed_in(jobs, "job_one") == [state]


def test_an_erased_job_is_in_no_list(queue, client):
    enqueue(queue, a_job("job_live"), a_job("job_ended"))
    queue.cancel("job_ended", TENANT)

    queue.erase("job_live", TENANT)
    queue.erase("job_ended", TENANT)

    assert list(client.scan_iter("*:jobs:*")) == []


def test_only_a_tenants_own_jobs_are_listed_and_no_deliveries(jobs, queue):
    enqueue(queue, a_job("job_mine", webhook_url="https://x.test/"), a_job("job_x", tenant="other"))
    queue.cancel("job_mine", TENANT)

    assert ids(jobs, JobState.CANCELLED) == ["job_mine"]
    assert ids(jobs, JobState.QUEUED) == []
    assert ids(jobs, JobState.QUEUED, tenant="other") == ["job_x"]


def test_pages_follow_each_other_newest_first(jobs, queue, clock):
    for number in range(5):
        enqueue(queue, a_job(f"job_{number}"))
        clock.advance(1)

    first = jobs.page(TENANT, JobState.QUEUED, PageQuery(2))
    second = jobs.page(TENANT, JobState.QUEUED, PageQuery(2, after="job_3"))
    last = jobs.page(TENANT, JobState.QUEUED, PageQuery(2, after="job_1"))

    assert [record.id for record in first.items] == ["job_4", "job_3"]
    assert [record.id for record in second.items] == ["job_2", "job_1"]
    assert [record.id for record in last.items] == ["job_0"]
    assert (first.has_more, second.has_more, last.has_more) == (True, True, False)


def test_a_cursor_that_left_the_list_still_marks_its_place(jobs, queue, clock):
    for number in range(4):
        enqueue(queue, a_job(f"job_{number}"))
        clock.advance(1)

    queue.cancel("job_2", TENANT)

    assert ids(jobs, JobState.QUEUED, after="job_2") == ["job_1", "job_0"]


def test_another_tenants_cursor_is_as_unknown_as_a_random_one(jobs, queue):
    enqueue(queue, a_job("job_theirs", tenant="other"))

    with pytest.raises(RequestError) as theirs:
        jobs.page(TENANT, JobState.QUEUED, PageQuery(1, after="job_theirs"))
    with pytest.raises(RequestError) as unknown:
        jobs.page(TENANT, JobState.QUEUED, PageQuery(1, after="job_nowhere"))

    assert str(theirs.value) == str(unknown.value)


def test_what_has_expired_is_forgotten(make_queue, client, clock):
    queue = make_queue(record_ttl_ms=1_000)
    enqueue(queue, a_job("job_old"))
    queue.cancel("job_old", TENANT)
    clock.advance(1_001)
    enqueue(queue, a_job("job_new"))
    queue.cancel("job_new", TENANT)

    index = "{pm}:tenant:default:jobs:cancelled"
    assert client.zrange(index, 0, -1) == ["job_new"]
    assert 0 < client.pttl(index) <= 1_000


def test_usage_counts_prompt_jobs_and_their_tokens(jobs, queue):
    enqueue(queue, a_job("job_a", webhook_url="https://x.test/"), a_job("job_b"))
    finish(queue, claim_one(queue), tokens=7)

    assert jobs.usage(TENANT) == {"submitted": 2, "completed": 1, "tokens": 7}
    assert jobs.num_live(TENANT) == {JobState.QUEUED: 1, JobState.RUNNING: 0}
