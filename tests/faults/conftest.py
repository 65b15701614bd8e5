"""A cluster for each fault test, one source of chance, and the table of rows against results."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.proxy import FaultProxy

_ROW = "fault"


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Return the source of every random choice, from the seed that is printed at the start."""
    return random.Random(request.config.getoption("randomly_seed"))


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster that has a server and no worker yet."""
    return make_cluster()


@pytest.fixture
def proxy_to(chance: random.Random) -> Iterator[Callable[[Cluster], FaultProxy]]:
    """Return a way to put a proxy in front of a cluster's server."""
    proxies: list[FaultProxy] = []

    def make(cluster: Cluster) -> FaultProxy:
        proxy = FaultProxy(cluster.server.port, chance)
        proxy.start()
        proxies.append(proxy)
        return proxy

    yield make
    for proxy in proxies:
        proxy.stop()


@pytest.fixture
def proxy(cluster: Cluster, proxy_to: Callable[[Cluster], FaultProxy]) -> FaultProxy:
    """Return a proxy in front of the cluster's server."""
    return proxy_to(cluster)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers(_ROW):
            item.user_properties.append((_ROW, marker.args[0]))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print which rows of the fault table were shown, and how it went."""
    rows: dict[str, list[str]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, row in getattr(report, "user_properties", ()):
                if name == _ROW:
                    rows.setdefault(row, []).append(outcome)
    if not rows:
        return
    terminalreporter.section("faults")
    for row in sorted(rows, key=lambda row: int(row[1:])):
        counts = ", ".join(f"{rows[row].count(word)} {word}" for word in sorted(set(rows[row])))
        terminalreporter.write_line(f"{row:>4}  {counts}")
