"""F32: all faults, drawn at random from one seed, over a whole stack under steady load.

PROMPTMILL_SOAK_MINUTES sets the length: some seconds in every run, two hours by `make soak-random`.
"""

import os
from collections.abc import Iterator

import pytest

from tests.support.receiver import receiver
from tests.support.soak import ALL_IS_WELL, Plan, Soak
from tests.support.soak_load import Pace
from tests.support.soak_stack import Kind, Part

MINUTES = float(os.environ.get("PROMPTMILL_SOAK_MINUTES", "0"))  # noqa: TID251  see above

PARTS = (
    Part("engine-elder", Kind.ENGINE, is_elder=True),
    Part("engine", Kind.ENGINE),
    Part("api", Kind.API),
    Part("cpu", Kind.CPU),
    Part("beat", Kind.BEAT),
)
ELDERS = (
    Part("api-elder", Kind.API, is_elder=True),
    Part("cpu-elder", Kind.CPU, is_elder=True),
)
QUICK = Plan(0.12, PARTS, Pace(job_s=0.15, batch_s=6.0), lease_s=1.5, fault_pause_s=(0.1, 0.6))
LONG = Plan(
    MINUTES,
    (*PARTS, *ELDERS),
    Pace(job_s=0.8, batch_s=40.0),
    lease_s=5.0,
    fault_pause_s=(4.0, 14.0),
)


@pytest.fixture
def soak(tmp_path, chance) -> Iterator[Soak]:
    with receiver() as hooks:
        soak = Soak(tmp_path / "soak", LONG if MINUTES else QUICK, hooks, chance)
        yield soak
        soak.stop()


@pytest.mark.fault("F32")
@pytest.mark.timeout(300 + MINUTES * 60 * 2)
def test_whatever_strikes_in_whatever_order_nothing_is_lost_and_nothing_is_left(soak):
    soak.start()

    soak.run()

    verdict = soak.finish()
    print(soak.report())  # noqa: T201  a soak's figures are for its reader
    assert verdict == ALL_IS_WELL
    assert [str(growth) for growth in soak.growths() if growth.has_grown] == []
    assert not MINUTES or soak.wait_for_lifetimes() == set()
