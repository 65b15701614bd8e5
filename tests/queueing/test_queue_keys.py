"""Every key that is really there is one that keys.py tells of, and has an owner or a lifetime."""

import re

import pytest

from queueing import keys
from queueing.job import Idempotency, Priority
from queueing.keys import Key
from queueing.queue import ClaimCall
from tests.queueing.conftest import LEASE_MS
from tests.support.jobs import QUEUE, TENANT, a_job, claim_one, enqueue, finish

FAMILIES = [family for family in vars(keys).values() if isinstance(family, Key)]
# Keys that live as long as their queue or tenant; their number does not grow with the jobs.
OF_A_QUEUE = {"queues", "bell", "urgent_bell", "share", "load", "totals", "usage"}


def pattern_of(family):
    parts = re.split(r"\{\w+\}", family.template)
    return re.compile(r"\{pm\}:" + ".+".join(map(re.escape, parts)))


def family_of(key):
    fitting = [family for family in FAMILIES if pattern_of(family).fullmatch(key)]
    assert fitting, f"keys.py does not tell of {key}"
    return max(fitting, key=lambda family: len(re.sub(r"\{\w+\}", "", family.template)))


@pytest.fixture
def history(queue, clock):
    """Put jobs through everything that can happen to them, and leave none live."""
    enqueue(
        queue,
        *[a_job(priority=priority, webhook_url="https://x.test/") for priority in Priority],
        a_job("job_late", deadline_s=1.0, tenant="other"),
        a_job("job_later", not_before_s=5.0),
    )
    queue.enqueue(a_job("job_once"), Idempotency("jobs", "key", "digest"))
    clock.advance(1_001)
    for claim in queue.claim(QUEUE, "w1", 2, call=ClaimCall(id="1")):
        finish(queue, claim)
    claim_one(queue)
    clock.advance(LEASE_MS)
    queue.cancel("job_once", TENANT)
    while claims := queue.claim(QUEUE, "w1", 9):
        for claim in claims:
            finish(queue, claim)
    while claims := queue.claim("webhooks", "w2", 9):
        for claim in claims:
            finish(queue, claim)


@pytest.mark.usefixtures("history")
def test_every_key_is_of_a_documented_family(client):
    families = {family_of(key).name for key in client.scan_iter("*")}

    assert {"job", "result", "totals", "idempotency", "claimed"} <= families


@pytest.mark.usefixtures("history")
def test_once_all_jobs_have_ended_only_keys_of_queues_live_for_ever(client):
    eternal = {key for key in client.scan_iter("*") if client.pttl(key) == -1}

    assert {family_of(key).name for key in eternal} <= OF_A_QUEUE


@pytest.mark.usefixtures("history")
def test_everything_lies_under_the_prefix(client):
    assert [key for key in client.scan_iter("*") if not key.startswith("{pm}:")] == []
