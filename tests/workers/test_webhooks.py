import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueing.errors import FailureCode
from queueing.job import JobError, JobResult, JobState, Outcome
from queueing.outbox import Delivery
from queueing.webhook_signature import SignatureError
from tests.support.deliveries import SECRET, DeliveryBench
from tests.support.receiver import answers, answers_in_turn, receiver
from workers.webhook_client import Attempt, AttemptResult
from workers.webhooks import STANDARD_SCHEDULE_S, Delivered, GivenUp, Retry, RetrySchedule

SCHEDULE = RetrySchedule()
ANSWERED = {
    AttemptResult.REDIRECT: 301,
    AttemptResult.REFUSED: 404,
    AttemptResult.SERVER_ERROR: 500,
}
FAILURES = [result for result in AttemptResult if result is not AttemptResult.SUCCESS]


def failed(result=AttemptResult.SERVER_ERROR, **fields):
    return Attempt(result, 0.1, ANSWERED.get(result), **fields)


def after(attempt, *, attempts=1, **fields):
    return SCHEDULE.after(Delivery("{}", "evt_1", attempts=attempts, **fields), attempt)


@pytest.mark.parametrize("attempts", range(1, 10))
def test_retries_follow_the_standard_schedule_with_jitter(attempts):
    decision = after(failed(), attempts=attempts)

    assert isinstance(decision, Retry)
    assert 1.0 <= decision.delay_s / STANDARD_SCHEDULE_S[attempts] <= 1.2


def test_the_standard_schedule_tries_ten_times_in_three_days():
    assert len(STANDARD_SCHEDULE_S) == 10
    assert 3 <= sum(STANDARD_SCHEDULE_S) / 86_400 < 3.5


def test_the_last_attempt_gives_up_with_a_reason():
    decision = after(failed(AttemptResult.TIMEOUT), attempts=10)

    assert decision == GivenUp("no success in 10 attempts, the last one: timeout")


def test_a_receiver_that_is_gone_is_not_tried_again():
    decision = after(Attempt(AttemptResult.REFUSED, 0.1, 410))

    assert decision == GivenUp("the receiver is gone (410)", is_final=True)


def test_a_forbidden_address_is_not_retried_more_than_three_times():
    blocked = failed(AttemptResult.BLOCKED)

    assert isinstance(after(blocked, attempts=3, blocked=3), Retry)
    assert isinstance(after(blocked, attempts=4, blocked=4), GivenUp)


def test_the_receivers_wish_to_wait_is_kept_when_it_is_longer_than_ours():
    assert after(failed(retry_after_s=90.0), attempts=1) == Retry(90.0)
    assert after(failed(retry_after_s=90.0), attempts=9) != Retry(90.0)


def test_a_wish_to_wait_for_years_is_capped_at_a_day():
    assert after(failed(retry_after_s=1e9), attempts=1) == Retry(86_400.0)


@given(
    st.sampled_from(FAILURES),
    st.integers(1, 10),
    st.integers(0, 4),
    st.none() | st.floats(0, 1e12),
    st.text(max_size=8),
)
def test_a_failure_is_retried_within_bounds_or_given_up(
    result, attempts, blocked, wish_s, webhook_id
):
    delivery = Delivery("{}", webhook_id, attempts=attempts, blocked=blocked)

    decision = SCHEDULE.after(delivery, failed(result, retry_after_s=wish_s))

    assert not isinstance(decision, Delivered)
    assert isinstance(decision, GivenUp) or 5.0 <= decision.delay_s <= 86_400 * 1.2
    assert isinstance(decision, GivenUp) == (attempts == 10 or blocked == 4)


@pytest.fixture
def server():
    with receiver() as running:
        yield running


def test_the_end_of_a_job_reaches_its_receiver_signed(redis_url, server):
    bench = DeliveryBench(redis_url, [server.port])
    event_id = bench.end_a_job(server.url())

    bench.deliver_due()

    (received,) = server.take(1)
    assert bench.verified_id(received) == event_id
    assert json.loads(received.body)["type"] == "job.completed"
    assert json.loads(received.body)["data"] == {"id": "job_1"}
    assert bench.state(event_id) is JobState.COMPLETED
    assert bench.counted("attempts_total", result="2xx") == 1
    assert bench.counted("messages_total", outcome="delivered") == 1
    assert bench.counted("attempt_duration_seconds_count") == 1


def test_each_tenant_has_its_own_secret(redis_url, server):
    bench = DeliveryBench(redis_url, [server.port])
    bench.end_a_job(server.url(), tenant="a")

    bench.deliver_due()

    (received,) = server.take(1)
    assert bench.verified_id(received, SECRET.for_tenant("a")) == "evt_1"
    with pytest.raises(SignatureError):
        bench.verified_id(received, SECRET)


def test_a_failed_attempt_is_repeated_later_under_the_same_id_with_the_same_bytes(redis_url):
    with receiver(answers_in_turn(answers(503), answers(200))) as server:
        bench = DeliveryBench(redis_url, [server.port])
        event_id = bench.end_a_job(server.url())

        at_once = bench.deliver_due()
        too_early = bench.deliver_due()
        bench.clock.advance(ms=6_000)
        in_time = bench.deliver_due()

        first, second = server.take(2)
    assert (at_once, too_early, in_time) == (1, 0, 1)
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == event_id
    assert first.body == second.body
    assert bench.state(event_id) is JobState.COMPLETED


def test_an_hour_of_failure_ends_delivered_once_the_receiver_is_back(redis_url):
    with receiver(answers_in_turn(*[answers(503)] * 4, answers(200))) as server:
        bench = DeliveryBench(redis_url, [server.port])
        event_id = bench.end_a_job(server.url())

        bench.deliver_over(STANDARD_SCHEDULE_S[:5])

        assert len(server.take(5)) == 5
    assert bench.state(event_id) is JobState.COMPLETED


def test_after_the_last_attempt_the_delivery_is_failed_with_a_reason(redis_url):
    with receiver(answers(500)) as server:
        bench = DeliveryBench(redis_url, [server.port], schedule_s=(0, 1))
        event_id = bench.end_a_job(server.url())

        bench.deliver_due()
        bench.clock.advance(ms=1_300)
        bench.deliver_due()

    assert bench.state(event_id) is JobState.FAILED
    assert bench.error(event_id) == JobError(
        FailureCode.WEBHOOK_UNDELIVERABLE, "no success in 2 attempts, the last one: 5xx"
    )
    assert bench.counted("messages_total", outcome="undeliverable") == 1


def test_a_blocked_address_is_counted_and_nothing_is_sent(redis_url, server):
    bench = DeliveryBench(redis_url, [server.port])
    bench.end_a_job(f"http://10.0.0.1:{server.port}/")

    bench.deliver_due()

    assert bench.counted("attempts_total", result="blocked") == 1
    assert server.arrivals.empty()


def test_a_delivery_whose_lease_was_lost_meanwhile_changes_nothing(redis_url, server):
    bench = DeliveryBench(redis_url, [server.port])
    event_id = bench.end_a_job(server.url())
    (stale,) = bench.claim_due()
    bench.clock.advance(ms=15_001)
    (newer,) = bench.claim_due()

    bench.deliverer.deliver(stale.lease, stale.request)

    assert bench.state(event_id) is JobState.RUNNING
    assert bench.queue.finish(Outcome(newer.lease, JobResult(JobState.COMPLETED)))
    assert bench.counted("messages_total", outcome="delivered") == 0


def test_a_delivery_without_a_place_is_handed_back_without_counting_as_an_attempt(
    redis_url, server
):
    bench = DeliveryBench(redis_url, [server.port])
    event_id = bench.end_a_job(server.url())
    bench.lanes.enter(f"http://127.0.0.1:{server.port}")

    bench.deliver_due()

    assert bench.state(event_id) is JobState.QUEUED
    assert server.arrivals.empty()
    bench.clock.advance(ms=1_000)
    bench.lanes.leave(f"http://127.0.0.1:{server.port}", duration_s=0.1, hung=False)
    assert bench.deliver_due() == 1
    assert server.take(1)


def test_neither_url_nor_body_is_logged(redis_url, server, capsys, caplog):
    bench = DeliveryBench(redis_url, [server.port])
    bench.end_a_job(server.url() + "?token=canary-4711")

    with caplog.at_level("DEBUG"):
        bench.deliver_due()

    (received,) = server.take(1)
    assert "canary-4711" in received.request_line
    captured = capsys.readouterr()
    assert "canary-4711" not in captured.out + captured.err + caplog.text
