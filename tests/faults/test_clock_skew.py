"""F19: hosts whose clocks are wrong, and jump while everything runs. The store's clock is right.

Where there is no compiler for the wrong clocks, the same is shown with right ones; that the queue
asks no host for the time is shown in tests/queueing too.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest

from queueing.clock import SystemClock
from tests.support.jobs import QUEUE
from tests.support.live_stack import API_KEY
from tests.support.load import amount
from tests.support.receiver import Receiver, receiver
from tests.support.soak_client import SoakClient
from tests.support.soak_stack import Kind, Part, SoakStack
from tests.support.waiting import wait_until

HOUR_S = 3_600
PARTS = (Part("api", Kind.API), Part("engine", Kind.ENGINE), Part("cpu", Kind.CPU))
LONG_S, SHORT_S = 30.0, 0.05
# A webhook may have waited for its turn, and a second is cut off.
TOLERANCE_S = 10


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
def stack(tmp_path, chance, hooks) -> Iterator[SoakStack]:
    """Return a stack that is up, behind clocks that are still right."""
    folder = tmp_path / "stack"
    folder.mkdir()
    stack = SoakStack(folder, PARTS, chance, lease_s=2.0, receiver_port=hooks.port)
    stack.start()
    wait_until(lambda: answers(stack.api_urls[0]), 30.0, stack.logs)
    yield stack
    stack.stop()


@pytest.fixture
def client(stack, chance) -> Iterator[SoakClient]:
    client = SoakClient(stack.api_urls, API_KEY, Random(chance.random()))
    yield client
    client.close()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=1, trust_env=False).is_success
    except httpx.TransportError:
        return False


def set_clocks(stack: SoakStack, **offsets_s: int) -> None:
    for name, clock in stack.clocks.items():
        clock.set(offsets_s[name])


def submit(client: SoakClient, what: str, count: int, url: str) -> list[str]:
    """Submit jobs of which every fourth can hardly be in time, and every second has a webhook."""
    ids = []
    for number in range(count):
        body: dict[str, Any] = {
            "prompt": f"{what} {number}",
            "max_tokens": 10,
            "deadline_s": SHORT_S if number % 4 == 0 else LONG_S,
        }
        if number % 2:
            body["webhook_url"] = url
        ids.append(client.make("/v1/jobs", body, key=f"{what}-{number}")["id"])
    return ids


def read_ends(client: SoakClient, ids: list[str]) -> list[dict[str, Any]]:
    return [client.ask("GET", f"/v1/jobs/{name}?wait=20").json() for name in ids]


def skews_s(hooks: Receiver, count: int) -> list[float]:
    """Return by how much the clocks of so many deliveries were off."""
    stamps_s = [int(one.headers["webhook-timestamp"]) for one in hooks.take(count)]
    return [stamp_s - SystemClock().now_ms() / 1000 for stamp_s in stamps_s]


@pytest.mark.fault("F19")
def test_wrong_clocks_move_neither_deadlines_nor_leases(stack, client, hooks):
    count = amount(quick=20, soak=152)
    set_clocks(stack, api=HOUR_S, engine=-HOUR_S, cpu=HOUR_S)
    ids = submit(client, "apart", count, hooks.url())
    jobs = read_ends(client, ids)
    skews = skews_s(hooks, count // 2)

    set_clocks(stack, api=-HOUR_S, engine=HOUR_S, cpu=-HOUR_S)
    ids = submit(client, "jumped", count, hooks.url())
    jobs += read_ends(client, ids)
    skews_after = skews_s(hooks, count // 2)

    in_time = [job for job in jobs if job["deadline_at"] - job["created_at"] > SHORT_S * 2]
    assert len(in_time) == 2 * count * 3 // 4
    assert {job["state"] for job in in_time} == {"completed"}
    assert [job for job in jobs if (job["started_at"] or 0) > job["deadline_at"]] == []
    assert stack.queue.totals(QUEUE).get("lost", 0) == 0
    skew_s = HOUR_S if stack.clocks else 0
    assert skews == [pytest.approx(skew_s, abs=TOLERANCE_S)] * (count // 2)
    assert skews_after == [pytest.approx(-skew_s, abs=TOLERANCE_S)] * (count // 2)
