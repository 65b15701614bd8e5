"""Ticks that die between any two effects: each line still ends in one file, once, and runs once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queueing.admission import RateLimits
from queueing.batch import Batch, BatchStatus
from queueing.job import BATCH_QUEUE, DEFAULT_TENANT, Lease
from queueing.store import connect
from queueing.tenants import Tenant
from tests.support.batch_bench import BatchBench, a_line, as_jsonl, tick_until_stale
from tests.support.fuse import Fuse, Killed, fused_client, fused_disk
from workers.batch_lines import TickLimits

IDS = [f"line-{index}" for index in range(5)]
LINES = as_jsonl(
    a_line(custom_id, model="unknown" if index == 2 else "tiny")
    for index, custom_id in enumerate(IDS)
)


class CrashingBench(BatchBench):
    """A bench whose ticker is killed after a number of effects."""

    def __init__(self, client, data_dir, url) -> None:
        super().__init__(client, data_dir)
        self.fuse = Fuse()
        self._fused = fused_client(url, self.fuse)
        self.ticker = self.make_ticker(self._fused, TickLimits(chunk_lines=2))

    def close(self) -> None:
        self._fused.close()
        self.client.close()

    def tick_or_die(self, lease: Lease, budget: int | None) -> bool:
        """Tick with so many effects left; True when that killed it."""
        self.fuse.set(budget)
        try:
            with fused_disk(self.fuse):
                self.ticker.tick(lease)
        except Killed:
            return True
        return False

    def forget_the_dead(self) -> None:
        """Let time pass until a dead tick's lease has run out."""
        self.clock.advance(ms=self.limits.lease_ms + 1)

    def run_to_end(self, batch_id: str, budget: int, midway: Callable[[], object]) -> bool:
        """Settle a batch, killing its ticker once after `budget` effects; True when that happened.

        `midway` happens after the first tick, or the death of it.
        """
        left: int | None = budget
        is_first = True
        while not self.read(batch_id).status.is_terminal:
            lease = self.claim_tick()
            if lease is None:
                if not self.serve(2):
                    self.clock.advance(ms=500)
                continue
            if self.tick_or_die(lease, left):
                left = None
                self.serve(2)
                self.forget_the_dead()
            elif left is not None:
                left -= self.fuse.num_burnt
            if is_first:
                self.serve(1)
                midway()
                is_first = False
        return left is None

    def check(self, batch_id: str) -> Batch:
        batch = self.read(batch_id)
        self.check_conserved(batch, IDS)
        assert set(self.num_runs.values()) <= {1}, "a line ran twice"
        assert self.queue.depth(BATCH_QUEUE).leased == 0
        return batch

    def lose_input(self, batch_id: str) -> None:
        name = self.read(batch_id).input_file.removeprefix("file-")
        (self.files.folder / name).unlink(missing_ok=True)

    def check_given_up(self, batch_id: str) -> Batch:
        """What was answered is in the output, no line is in two places, and nothing is left."""
        batch = self.read(batch_id)
        output = [line["custom_id"] for line in self.lines(batch.output_file)]
        error = [line["custom_id"] for line in self.lines(batch.error_file)]
        assert {f"say {custom_id}" for custom_id in output} == set(self.num_runs)
        assert len({*output, *error}) == len(output) + len(error)
        assert (batch.progress.completed, batch.progress.failed) == (len(output), len(error))
        assert list(self.client.scan_iter("{pm}:job:job_*")) == []
        assert self.queue.depth(BATCH_QUEUE).leased == 0
        return batch


@pytest.fixture
def bench(redis_url, tmp_path) -> Iterator[CrashingBench]:
    bench = CrashingBench(connect(redis_url), tmp_path, redis_url)
    yield bench
    bench.close()


def kill_at_every_effect(
    bench: CrashingBench,
    midway: Callable[[str], object],
    window_s: int = 86_400,
    check: Callable[[CrashingBench, str], Batch] = CrashingBench.check,
) -> tuple[int, set[BatchStatus]]:
    """Run one batch for each effect there is; return how many there were and how they ended."""
    ends = set()
    num_effects = 0
    is_killed = True
    while is_killed:
        bench.num_runs.clear()
        batch_id = bench.create(LINES, window=3, window_s=window_s)
        is_killed = bench.run_to_end(batch_id, num_effects, lambda: midway(batch_id))  # noqa: B023
        ends.add(check(bench, batch_id).status)
        num_effects += 1
    return num_effects, ends


def test_a_tick_killed_before_any_of_its_effects_loses_and_repeats_nothing(bench):
    bench.tenant = Tenant(DEFAULT_TENANT, limits=RateLimits(tokens_per_day=1_000_000))

    num_effects, ends = kill_at_every_effect(bench, midway=lambda _batch_id: None)

    assert ends == {BatchStatus.COMPLETED}
    assert num_effects > 60
    # Two words and 16 tokens, of four lines that can run in each of as many batches.
    counted = bench.client.hget("{pm}:tenant:default:buckets", "day_tokens")
    assert int(counted) == num_effects * 4 * (2 + 16)


def test_a_cancelled_batch_survives_a_kill_before_any_effect(bench):
    num_effects, ends = kill_at_every_effect(
        bench, midway=lambda batch_id: bench.batches.cancel(batch_id, DEFAULT_TENANT)
    )

    assert ends == {BatchStatus.CANCELLED}
    assert num_effects > 40


def test_an_expiring_batch_survives_a_kill_before_any_effect(bench):
    num_effects, ends = kill_at_every_effect(
        bench, midway=lambda _batch_id: bench.clock.advance(ms=2_000), window_s=2
    )

    assert ends <= {BatchStatus.EXPIRED, BatchStatus.COMPLETED}
    assert num_effects > 40


def test_a_batch_that_is_given_up_survives_a_kill_before_any_effect(bench):
    num_effects, ends = kill_at_every_effect(
        bench, midway=bench.lose_input, check=CrashingBench.check_given_up
    )

    assert ends == {BatchStatus.FAILED}
    assert num_effects > 40


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens next: a tick that dies after `budget` effects, or something else."""

    action: str
    budget: int = 0


turns = st.lists(
    st.one_of(
        st.builds(Turn, st.just("tick"), st.integers(0, 40)),
        st.builds(Turn, st.sampled_from(["serve", "serve", "zombie", "cancel", "wait", "lose"])),
    ),
    max_size=40,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(turns=turns, window=st.integers(1, 6))
def test_whatever_dies_in_whatever_order_each_line_ends_in_one_file_once(bench, turns, window):
    bench.client.flushdb()
    batch_id = bench.create(LINES, window=window)
    dead: list[Lease] = []

    for turn in turns:
        play(bench, batch_id, turn, dead)

    bench.fuse.set(None)
    batch = bench.settle(batch_id)
    bench.check_conserved(batch, IDS)
    assert batch.status in (BatchStatus.COMPLETED, BatchStatus.CANCELLED)


def play(bench: CrashingBench, batch_id: str, turn: Turn, dead: list[Lease]) -> None:
    match turn.action:
        case "tick":
            lease = bench.claim_tick()
            if lease is not None and bench.tick_or_die(lease, turn.budget):
                dead.append(lease)
        case "serve":
            bench.serve(2)
        case "zombie":
            # A tick that only slept goes on after somebody else may have taken over.
            if dead:
                bench.fuse.set(None)
                tick_until_stale(bench.ticker, dead.pop())
        case "cancel":
            bench.batches.cancel(batch_id, DEFAULT_TENANT)
        case "wait":
            bench.forget_the_dead()
        case "lose":
            bench.queue.claim("generate.tiny", "engine that dies", 1)
