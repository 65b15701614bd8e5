import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queueing.admission import Admission, RateLimits
from queueing.clock import ManualClock
from queueing.store import connect


@pytest.fixture
def admission(client, clock):
    return Admission(client, clock=clock)


def take(admission, limits, tokens=1, times=1):
    return [admission.take("acme", limits, tokens).used_up for _ in range(times)]


def test_a_tenant_without_limits_leaves_nothing_in_the_store(admission, client):
    verdict = admission.take("acme", RateLimits(), 10**9)

    assert verdict.used_up is None
    assert verdict.allowance is None
    assert client.dbsize() == 0


def test_a_burst_may_be_one_and_a_half_times_the_rate(admission):
    limits = RateLimits(requests_per_min=10)

    answers = take(admission, limits, times=16)

    assert answers == [None] * 15 + ["requests"]


def test_a_bucket_fills_steadily_and_tells_when_to_come_back(admission, clock):
    limits = RateLimits(requests_per_min=10)
    take(admission, limits, times=15)
    refused = admission.take("acme", limits, 1)

    clock.advance(ms=refused.retry_after_s * 1000)

    assert refused.retry_after_s == 6
    assert take(admission, limits, times=2) == [None, "requests"]


def test_a_refusal_for_tokens_takes_no_request(admission):
    limits = RateLimits(requests_per_min=2, tokens_per_min=100)
    take(admission, limits, tokens=150)
    refused = take(admission, limits, tokens=50, times=5)

    allowed = take(admission, limits, tokens=0, times=2)

    assert refused == ["tokens"] * 5
    assert allowed == [None, None]


def test_a_job_larger_than_the_bucket_waits_for_a_full_one_and_leaves_a_debt(admission, clock):
    limits = RateLimits(tokens_per_min=100)
    first = take(admission, limits, tokens=400)
    clock.advance(ms=60_000)
    in_debt = admission.take("acme", limits, 1)

    clock.advance(ms=91_000)

    assert first == [None]
    assert in_debt.used_up == "tokens"
    assert take(admission, limits, tokens=1) == [None]


def test_the_day_counts_from_midnight(admission, clock):
    limits = RateLimits(tokens_per_day=100)
    first = take(admission, limits, tokens=60, times=2)

    clock.advance(ms=86_400_000)

    assert first == [None, "day"]
    assert take(admission, limits, tokens=60) == [None]


def test_a_wait_is_never_told_longer_than_clients_wait(admission):
    limits = RateLimits(tokens_per_day=1)

    assert admission.take("acme", limits, 2).retry_after_s == 120


def test_the_bucket_nearest_to_its_end_is_told(admission):
    limits = RateLimits(requests_per_min=100, tokens_per_min=100)

    allowance = admission.take("acme", limits, 120).allowance

    assert (allowance.limit, allowance.remaining, allowance.reset_s) == (150, 30, 72)


def test_each_tenant_has_buckets_of_its_own(admission):
    limits = RateLimits(requests_per_min=1)
    take(admission, limits, times=2)

    assert admission.take("other", limits, 1).used_up is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(waits=st.lists(st.integers(0, 20_000), max_size=40))
def test_no_pattern_gets_more_than_the_rate_and_one_burst(redis_url, waits):
    with connect(redis_url) as client:
        client.flushall()
        clock = ManualClock()
        admission = Admission(client, clock=clock)
        limits = RateLimits(requests_per_min=6)

        passed = 0
        for wait_ms in waits:
            clock.advance(ms=wait_ms)
            passed += admission.take("acme", limits, 1).used_up is None

        assert passed <= 9 + sum(waits) * 6 / 60_000 + 1e-6
