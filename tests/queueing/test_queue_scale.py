"""What a claim costs the server when very many jobs wait, by the server's own statistics."""

import time
from dataclasses import dataclass

import pytest
import redis

from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from tests.support.jobs import a_job, claim_one
from tests.support.load import amount
from tests.support.server import RedisServer, embedded_binary

NUM_CLAIMS = 600
ROUND = 20


@dataclass
class FilledStore:
    """A server of its own with so many jobs of ten tenants queued."""

    server: RedisServer
    client: "redis.Redis"
    claim_us: float = 0.0

    @property
    def queue(self):
        return JobQueue(self.client, QueueLimits(max_queued_jobs=10**7, max_queued_bytes=10**12))

    def fill(self, count):
        for begin in range(0, count, 1_000):
            numbers = range(begin, min(begin + 1_000, count))
            self.queue.enqueue_many([a_job(tenant=f"t{n % 10}", cost=10) for n in numbers])
        # A server that rewrites its file shares its memory with a child: each page that is written
        # to meanwhile is copied first, which costs more than the claim.
        while self.client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.05)

    def claim_a_round(self):
        self.client.config_resetstat()
        for _ in range(ROUND):
            claim_one(self.queue)
        self.claim_us += self.client.info("commandstats")["cmdstat_evalsha"]["usec"]


@pytest.fixture
def filled(tmp_path):
    """Return a way to a store with so many jobs."""
    stores = []

    def make(count):
        server = RedisServer(tmp_path / str(count), embedded_binary())
        server.start()
        stores.append(FilledStore(server, connect(server.url)))
        stores[-1].fill(count)
        return stores[-1]

    yield make
    for store in stores:
        store.client.close()
        store.server.stop()


@pytest.mark.timeout(amount(quick=60, soak=900))
def test_a_claim_among_very_many_jobs_costs_less_than_three_among_a_thousand(
    filled, record_property
):
    few = filled(1_000)
    many = filled(amount(quick=30_000, soak=1_000_000))

    # By turns, so that whatever else the machine does is done to both; and all count, not the best.
    for _ in range(NUM_CLAIMS // ROUND):
        few.claim_a_round()
        many.claim_a_round()

    record_property("us a claim", (few.claim_us / NUM_CLAIMS, many.claim_us / NUM_CLAIMS))
    assert many.claim_us < 3 * few.claim_us
