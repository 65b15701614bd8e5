"""F27 and F28: everything dies at random under a batch; a batch whose window ends in the middle."""

import random
import tracemalloc
from collections.abc import Iterator

import pytest

from queueing.batch import BatchStatus
from queueing.job import DEFAULT_TENANT, generate_queue
from queueing.store import connect
from tests.support.batch_bench import MODEL, BatchBench, a_line, as_jsonl
from tests.support.fuse import Fuse, Killed, fused_client, fused_disk
from tests.support.load import amount
from tests.support.server import RedisServer
from workers.batch_lines import TickLimits


@pytest.fixture
def bench(redis_url, tmp_path) -> Iterator[BatchBench]:
    client = connect(redis_url)
    bench = BatchBench(client, tmp_path)
    bench.ticker = bench.make_ticker(client, TickLimits())
    yield bench
    client.close()


def ids(number: int) -> list[str]:
    return [f"line-{index}" for index in range(number)]


class Mayhem:
    """Kills ticks, engine workers and the store while a batch runs."""

    def __init__(self, bench: BatchBench, server: RedisServer, chance: random.Random) -> None:
        self._bench = bench
        self._server = server
        self._chance = chance
        self._fuse = Fuse()
        self.num_lost_claims = 0
        self.num_dead_ticks = 0
        self.num_restarts = 0
        self._fused = fused_client(server.url, self._fuse)
        bench.ticker = bench.make_ticker(self._fused, TickLimits(chunk_lines=32))

    def close(self) -> None:
        self._fused.close()

    def turn(self) -> None:
        """Let one thing happen."""
        match self._chance.choices(
            ["tick", "serve", "lose an engine", "lose the store", "wait"], [6, 12, 1, 0.2, 1]
        ):
            case ["tick"]:
                self._tick()
            case ["serve"]:
                self._bench.serve(16)
            case ["lose an engine"]:
                claims = self._bench.queue.claim(generate_queue(MODEL), "dying", 4)
                self.num_lost_claims += len(claims)
            case ["lose the store"]:
                self._server.restart()
                self.num_restarts += 1
            case _:
                self._bench.clock.advance(ms=self._bench.limits.lease_ms // 2)

    def _tick(self) -> None:
        lease = self._bench.claim_tick()
        if lease is None:
            return
        self._fuse.set(self._chance.choice([None, self._chance.randrange(60)]))
        try:
            with fused_disk(self._fuse):
                self._bench.ticker.tick(lease)
        except Killed:
            self.num_dead_ticks += 1


@pytest.mark.fault("F27")
@pytest.mark.timeout(amount(quick=60, soak=900))
def test_a_batch_survives_the_death_of_everything_it_needs(bench, redis_server, chance):
    custom_ids = ids(amount(quick=300, soak=10_000))
    batch_id = bench.create(as_jsonl(map(a_line, custom_ids)), window=64)
    mayhem = Mayhem(bench, redis_server, chance)

    while not bench.read(batch_id).status.is_terminal:
        mayhem.turn()

    mayhem.close()
    batch = bench.read(batch_id)
    assert batch.status is BatchStatus.COMPLETED
    lines = bench.lines(batch.output_file) + bench.lines(batch.error_file)
    assert sorted(line["custom_id"] for line in lines) == sorted(custom_ids)
    assert batch.progress.num_accounted == len(custom_ids)
    assert mayhem.num_dead_ticks > 0
    assert sum(bench.num_runs.values()) <= len(custom_ids) + mayhem.num_lost_claims


@pytest.mark.fault("F27")
def test_no_file_of_a_batch_is_known_before_it_is_whole(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(40))), window=8)

    while not bench.read(batch_id).status.is_terminal:
        assert bench.client.zcard(f"{{pm}}:tenant:{DEFAULT_TENANT}:files") == 1
        if not bench.tick() and not bench.serve(4):
            bench.clock.advance(ms=1_000)

    batch = bench.read(batch_id)
    assert len(bench.lines(batch.output_file)) == batch.progress.completed == 40


@pytest.mark.fault("F28")
def test_five_hundred_lines_whose_window_ends_after_two_seconds_all_have_an_end(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(500))), window=64, window_s=2)
    bench.tick()
    for _ in range(6):
        bench.serve(20)
        bench.tick()
        bench.clock.advance(ms=200)

    bench.clock.advance(ms=1_000)
    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.EXPIRED
    bench.check_conserved(batch, ids(500))
    assert 100 < batch.progress.completed < 200
    codes = {line["error"]["code"] for line in bench.lines(batch.error_file)}
    assert codes == {"batch_expired"}


# Each batch is cancelled after another number of turns.
def test_cancelling_at_any_moment_leaves_a_batch_cancelled(bench):
    for num_turns in range(30):
        batch_id = bench.create(as_jsonl(map(a_line, ids(6))), window=3)
        for _ in range(num_turns):
            if not bench.tick() and not bench.serve(1):
                bench.clock.advance(ms=1_000)
        asked = bench.batches.cancel(batch_id, DEFAULT_TENANT)

        batch = bench.settle(batch_id)

        assert batch.status is (asked if asked.is_terminal else BatchStatus.CANCELLED)
        bench.check_conserved(batch, ids(6))
        assert bench.queue.claim(generate_queue(MODEL), "engine", 10) == []


@pytest.mark.timeout(amount(quick=60, soak=600))
def test_a_long_file_takes_no_more_memory_than_its_window(bench):
    num_lines = amount(quick=500, soak=10_000)
    content = as_jsonl(a_line(f"line-{index}", "x" * 300) for index in range(num_lines))
    batch_id = bench.create(content, window=256)
    del content
    tracemalloc.start()

    most_queued = 0
    while not bench.read(batch_id).status.is_terminal:
        if not bench.tick() and not bench.serve(64):
            bench.clock.advance(ms=1_000)
        most_queued = max(most_queued, len(bench.batches.live(batch_id)))

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    batch = bench.read(batch_id)
    assert batch.progress.completed == num_lines
    assert most_queued <= 256
    # The counter of runs, which the test itself keeps, grows with the file.
    assert peak_bytes < 4_000_000 + 1_000 * num_lines
