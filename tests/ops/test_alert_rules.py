"""Alert rules: each asks for metrics that the code exports, and has its place in the runbook."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from api.queue_metrics import QueueTotals
from api.switch_metrics import SwitchStates
from api.webhook_metrics import WebhookBacklog
from queueing.endpoints import EndpointStore
from queueing.model_routes import ModelRoutes
from queueing.queue import JobQueue
from queueing.store import connect
from queueing.switches import SwitchBoard
from tests.support.metric_groups import METRIC_GROUPS

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = {
    rule["alert"]: rule
    for path in sorted((REPOSITORY / "ops" / "prometheus").glob("*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
}
SEVERITIES = {"P0", "P1", "P2"}
_SELECTOR = re.compile(r"(promptmill_\w+)(?:\{([^}]*)\})?")
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


class Listening(CollectorRegistry):
    """A registry that remembers the collectors it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Any] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.collectors.append(collector)


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str] | None]:
    """Return the series that the code exports, with their labels where those are known."""
    registry = Listening()
    for group in METRIC_GROUPS:
        group(registry)
    with connect("redis://127.0.0.1:1/0") as nowhere:
        queue = JobQueue(nowhere)
        WebhookBacklog(queue, EndpointStore(nowhere), registry)
        QueueTotals(queue, ["m"], registry)
        SwitchStates(SwitchBoard(nowhere), ModelRoutes(nowhere), registry)
    series: dict[str, set[str] | None] = {}
    for collector in registry.collectors:
        labels = getattr(collector, "_labelnames", None)
        for family in collector.describe():
            for suffix in _SUFFIXES[family.type]:
                series[family.name + suffix] = None if labels is None else set(labels)
    return series


def test_there_are_rules():
    assert RULES


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_metric_of_an_alert_is_exported_with_the_labels_it_is_asked_by(rule, exported):
    asked = _SELECTOR.findall(rule["expr"])

    assert asked
    assert [name for name, _ in asked if name not in exported] == []
    unknown = [
        (name, label)
        for name, labels in asked
        for label in re.findall(r"(\w+)\s*[=!]", labels)
        if label not in (exported[name] or {label})
    ]
    assert unknown == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_alert_says_how_grave_it_is_and_what_to_do(rule):
    page, _, section = rule["annotations"]["runbook_url"].partition("#")
    sections = [
        heading.lower().replace(" ", "-")
        for heading in re.findall(r"^## (.+)$", (REPOSITORY / page).read_text(), re.MULTILINE)
    ]

    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"]["summary"].endswith(".")
    assert section == rule["alert"].lower()
    assert section in sections


@pytest.mark.parametrize("alert", RULES)
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_quiet(alert):
    # Prometheus's own tool runs them: see the file.
    written = yaml.safe_load((Path(__file__).with_name("alert_cases.yml")).read_text())
    cases = [case for test in written["tests"] for case in test["alert_rule_test"]]

    fires = {bool(case["exp_alerts"]) for case in cases if case["alertname"] == alert}

    assert fires == {True, False}


def test_the_runbook_has_no_section_without_an_alert():
    headings = re.findall(r"^## (.+)$", (REPOSITORY / "docs" / "runbook.md").read_text(), re.M)

    assert sorted(headings) == sorted(RULES)
