import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ops.metrics import (
    FIRST_TOKEN_BUCKETS,
    HTTP_BUCKETS,
    LATENCY_BUCKETS,
    NEXT_TOKEN_BUCKETS,
    STEP_BUCKETS,
    TOKENS_BUCKETS,
    EngineMetrics,
    StoreMetrics,
    new_registry,
)
from tests.support.metric_groups import METRIC_GROUPS


@pytest.fixture
def registry():
    return new_registry()


def test_all_groups_fit_on_one_registry(registry):
    for group in METRIC_GROUPS:
        group(registry)

    families = list(text_string_to_metric_families(generate_latest(registry).decode()))

    ours = [family for family in families if family.name.startswith("promptmill_")]
    assert len(ours) == len({family.name for family in ours})
    assert all(family.documentation.endswith(".") for family in ours)


def test_two_processes_worth_of_metrics_do_not_share_numbers():
    first, second = new_registry(), new_registry()
    StoreMetrics(first).errors.labels(kind="timeout").inc()
    StoreMetrics(second)

    assert first.get_sample_value("promptmill_redis_errors_total", {"kind": "timeout"}) == 1
    assert second.get_sample_value("promptmill_redis_errors_total", {"kind": "timeout"}) is None


def test_a_registry_tells_the_process_memory(registry):
    assert registry.get_sample_value("process_resident_memory_bytes") > 0


@pytest.mark.parametrize(
    "buckets",
    [
        HTTP_BUCKETS,
        LATENCY_BUCKETS,
        FIRST_TOKEN_BUCKETS,
        NEXT_TOKEN_BUCKETS,
        STEP_BUCKETS,
        TOKENS_BUCKETS,
    ],
)
def test_buckets_rise(buckets):
    assert list(buckets) == sorted(set(buckets))


def test_the_widest_buckets_hold_the_longest_context_and_the_longest_wait():
    assert TOKENS_BUCKETS[-1] == 100_000
    assert LATENCY_BUCKETS[-1] == 24 * 3600


def test_the_step_time_of_a_model_is_observed_under_its_name(registry):
    metrics = EngineMetrics(registry)

    metrics.step_duration_seconds.labels(model="m").observe(0.03)

    labels = {"model": "m", "le": "0.032"}
    name = "promptmill_engine_step_duration_seconds_bucket"
    assert registry.get_sample_value(name, labels) == 1
