from pathlib import Path

import pytest
from click import ClickException

from ops.bench.busy import CpuReading, others_share, read_cpu
from ops.bench.closed_loop import Answer, run_closed_loop
from ops.bench.program import BusyMachine, Laboratory, Program
from ops.bench.report import replace_section
from ops.bench.task import Task, TokenRequest
from ops.bench.venvs import Environment, ensure_environment

IDLE = CpuReading(wall_s=100.0, busy_s=50.0, ours_s=20.0)
NO_PROGRAM = Program(Path("no-such-python"), "no.such.module")


class CountingEngine:
    """Makes one token a step for everyone, and keeps count of how many it had at most."""

    version = "counting"

    def __init__(self):
        self.most_in_flight = 0
        self._left: dict[str, int] = {}
        self._made: dict[str, list[int]] = {}

    def add(self, request: TokenRequest) -> None:
        self._left[request.id] = request.max_tokens
        self._made[request.id] = []
        self.most_in_flight = max(self.most_in_flight, len(self._left))

    def step(self) -> list[Answer]:
        for id in self._left:
            self._left[id] -= 1
            self._made[id].append(7)
        ended = [id for id, left in self._left.items() if left == 0]
        for id in ended:
            del self._left[id]
        return [Answer(id, self._made.pop(id)) for id in ended]


def test_what_our_own_processes_use_is_nobody_elses():
    after = CpuReading(wall_s=110.0, busy_s=70.0, ours_s=40.0)

    assert others_share(IDLE, after, num_processors=2) == 0.0


def test_others_share_is_of_all_processors():
    after = CpuReading(wall_s=110.0, busy_s=61.0, ours_s=30.0)

    assert others_share(IDLE, after, num_processors=2) == pytest.approx(0.05)


def test_clocks_that_tick_coarsely_never_show_less_than_nobody():
    after = CpuReading(wall_s=101.0, busy_s=50.99, ours_s=21.0)

    assert others_share(IDLE, after, num_processors=2) == 0.0


def test_the_work_of_this_process_counts_as_ours():
    before = read_cpu()
    sum(range(3_000_000))
    after = read_cpu()

    assert after.ours_s > before.ours_s


def test_nothing_is_measured_while_others_use_the_machine():
    laboratory = Laboratory(even_if_busy=False, watch=lambda _: 0.06)

    with pytest.raises(BusyMachine, match="others use 6%"):
        laboratory.run(NO_PROGRAM, None)


def test_others_that_go_away_soon_are_waited_for():
    shares = iter([0.5, 0.5, 0.01])
    laboratory = Laboratory(even_if_busy=False, watch=lambda _: next(shares))

    with pytest.raises(ClickException, match="ended with 127"):  # it was started, and is not there
        laboratory.run(NO_PROGRAM, IDLE)


def test_a_closed_loop_answers_all_and_never_has_more_in_flight_than_it_may():
    engine = CountingEngine()
    asked = [TokenRequest(f"{number}", [1], 1 + number % 3) for number in range(10)]

    outcome = run_closed_loop(engine, Task("model", asked, in_flight=4, settings={}))

    assert {id: len(made) for id, made in outcome.answers.items()} == {
        request.id: request.max_tokens for request in asked
    }
    assert len(outcome.latencies_s) == 10
    assert engine.most_in_flight == 4


def test_a_section_of_the_page_is_replaced_and_the_rest_stays():
    page = "above\n<!-- begin curve -->\nold\n<!-- end curve -->\nbelow\n"

    replaced = replace_section(page, "curve", "new")

    assert replaced == "above\n<!-- begin curve -->\nnew\n<!-- end curve -->\nbelow\n"


def test_a_page_without_the_section_is_not_written_to():
    with pytest.raises(ValueError, match="no section curve"):
        replace_section("above\n", "curve", "new")


def test_an_environment_that_is_complete_is_not_made_again(tmp_path):
    made = tmp_path / "peer"
    made.mkdir()
    (made / ".complete").write_text("one==1\ntwo==2")

    python = ensure_environment(Environment("peer", ("one==1", "two==2")), tmp_path)

    assert python == made / "bin" / "python"
    assert [path.name for path in made.iterdir()] == [".complete"]


@pytest.mark.parametrize(
    "name", ["quick", "concurrency", "steps", "prefix", "soak", "latency", "peers", "curve"]
)
def test_the_page_has_every_section_that_is_measured(name):
    page = Path(__file__).parents[2] / "docs" / "performance.md"

    assert replace_section(page.read_text(), name, "") != ""
