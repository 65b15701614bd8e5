import pytest

from queueing.errors import FailureCode, QueueFull, QueueShed, RequestError
from queueing.job import JobKind, Priority
from queueing.queue import QueuePressure
from tests.support.jobs import QUEUE, a_job, claim_one, enqueue, finish


@pytest.fixture
def queue(make_queue):
    """Return a queue whose borders are at 60, 80, 95 and 100 jobs."""
    return make_queue(max_queued_jobs=100)


def fill(queue, count):
    enqueue(queue, *[a_job(priority=Priority.REALTIME) for _ in range(count)])


def drain(queue, count):
    for claim in queue.claim(QUEUE, "w1", count):
        finish(queue, claim)


def pressure(client):
    return int(client.hget("{pm}:queue:generate.fake:load", "pressure") or 0)


def test_below_sixty_percent_nothing_is_said(queue, client):
    fill(queue, 60)

    assert pressure(client) == 0


def test_from_sixty_percent_on_it_warns(queue, client):
    fill(queue, 61)

    assert pressure(client) == 1


def test_from_eighty_percent_on_bulk_is_shed(queue):
    fill(queue, 80)

    with pytest.raises(QueueShed) as refusal:
        queue.enqueue(a_job(priority=Priority.BULK))

    assert 0 < refusal.value.retry_after_s <= 120
    assert queue.enqueue(a_job()).created


def test_from_ninety_five_percent_on_standard_is_shed(queue):
    fill(queue, 95)

    with pytest.raises(QueueShed):
        queue.enqueue(a_job())

    assert queue.enqueue(a_job(priority=Priority.REALTIME)).created


def test_a_full_queue_refuses_even_realtime(queue):
    fill(queue, 100)

    with pytest.raises(QueueFull):
        queue.enqueue(a_job(priority=Priority.REALTIME))


def test_shedding_goes_on_until_there_is_some_room(queue):
    fill(queue, 81)
    queue_refuses(queue, Priority.BULK)
    drain(queue, 5)

    queue_refuses(queue, Priority.BULK)


def test_shedding_ends_five_percent_below_where_it_began(queue):
    fill(queue, 81)
    queue_refuses(queue, Priority.BULK)
    drain(queue, 6)

    assert queue.enqueue(a_job(priority=Priority.BULK)).created


def queue_refuses(queue, priority):
    with pytest.raises(QueueShed):
        queue.enqueue(a_job(priority=priority))


def test_large_requests_fill_a_queue_before_many_do(make_queue):
    queue = make_queue(max_queued_bytes=100_000)
    enqueue(queue, a_job(request="x" * 99_000, priority=Priority.REALTIME))

    with pytest.raises(QueueFull):
        queue.enqueue(a_job(priority=Priority.REALTIME))


def test_room_is_kept_for_the_results_of_what_was_accepted(make_queue):
    queue = make_queue(max_queued_bytes=100_000)
    enqueue(queue, a_job(cost=13_000, priority=Priority.REALTIME))

    with pytest.raises(QueueFull):
        queue.enqueue(a_job(priority=Priority.REALTIME))


def test_room_is_kept_for_the_vector_of_an_embedding(make_queue):
    queue = make_queue(max_queued_bytes=40_000)
    queue.enqueue(a_job(kind=JobKind.EMBED, priority=Priority.REALTIME))
    queue.enqueue(a_job(kind=JobKind.EMBED, priority=Priority.REALTIME))

    with pytest.raises(QueueFull):
        queue.enqueue(a_job(kind=JobKind.EMBED, priority=Priority.REALTIME))


def test_a_running_job_still_holds_its_bytes(make_queue):
    queue = make_queue(max_queued_bytes=100_000)
    enqueue(queue, a_job(request="x" * 99_000, priority=Priority.REALTIME))
    claim_one(queue)

    with pytest.raises(QueueFull):
        queue.enqueue(a_job(priority=Priority.REALTIME))


def test_an_ended_job_holds_no_bytes_and_no_tokens(queue, client):
    enqueue(queue, a_job(cost=500), a_job(cost=700))
    finish(queue, claim_one(queue))
    queue.claim(QUEUE, "w1", 1)
    queue.cancel(next(iter(client.zrange("{pm}:queue:generate.fake:leases", 0, -1))), "default")

    load = client.hgetall("{pm}:queue:generate.fake:load")

    assert (load["bytes"], load["cost:standard"]) == ("0", "0")


def test_without_a_measurement_every_deadline_is_feasible(queue):
    assert queue.enqueue(a_job(cost=10**6, deadline_s=0.001, must_meet_deadline=True)).created


def measured(queue, clock, tokens_per_s):
    """Let the queue be served at this speed for three seconds."""
    enqueue(queue, *[a_job(cost=100) for _ in range(4)])
    claims = queue.claim(QUEUE, "w1", 4)
    for claim in claims:
        clock.advance(round(100 / tokens_per_s * 1_000))
        finish(queue, claim, tokens=100)


def test_a_deadline_behind_too_much_work_is_refused_to_those_who_ask(queue, clock):
    measured(queue, clock, tokens_per_s=100)
    enqueue(queue, *[a_job(cost=100) for _ in range(20)])

    with pytest.raises(RequestError) as refusal:
        queue.enqueue(a_job(cost=10, deadline_s=10.0, must_meet_deadline=True))

    assert refusal.value.code is FailureCode.DEADLINE_INFEASIBLE
    assert refusal.value.param == "deadline_s"


def test_those_who_do_not_ask_are_taken_all_the_same(queue, clock):
    measured(queue, clock, tokens_per_s=100)
    enqueue(queue, *[a_job(cost=100) for _ in range(20)])

    assert queue.enqueue(a_job(cost=10, deadline_s=10.0)).created


def test_a_deadline_with_time_to_spare_is_taken(queue, clock):
    measured(queue, clock, tokens_per_s=100)
    enqueue(queue, *[a_job(cost=100) for _ in range(20)])

    assert queue.enqueue(a_job(cost=10, deadline_s=60.0, must_meet_deadline=True)).created


def test_less_urgent_work_does_not_stand_in_the_way_of_a_deadline(queue, clock):
    measured(queue, clock, tokens_per_s=100)
    enqueue(queue, *[a_job(cost=100, priority=Priority.BULK) for _ in range(20)])

    urgent = a_job(cost=10, deadline_s=10.0, must_meet_deadline=True, priority=Priority.REALTIME)

    assert queue.enqueue(urgent).created


def test_how_full_it_is_and_what_it_does_about_that_can_be_asked(queue):
    fill(queue, 60)
    at_sixty = queue.pressure(QUEUE)

    drain(queue, 4)
    a_little_below = queue.pressure(QUEUE)
    drain(queue, 2)

    assert at_sixty == QueuePressure(fill=0.6, level=1)
    assert a_little_below == QueuePressure(fill=0.56, level=1)
    assert queue.pressure(QUEUE) == QueuePressure(fill=0.54, level=0)


def test_bytes_can_fill_it_too(make_queue):
    queue = make_queue(max_queued_jobs=100, max_queued_bytes=10_000)
    fill(queue, 3)

    assert queue.pressure(QUEUE).fill == pytest.approx(0.63, abs=0.03)
    assert queue.pressure(QUEUE).level == 1
