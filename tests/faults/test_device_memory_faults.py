"""F21: prompts that the device has no memory for in one step, among others that it has."""

import pytest

from tests.support.fake_engine import HUNGRY
from tests.support.jobs import QUEUE
from tests.support.ledger import ALL_IS_WELL
from tests.support.load import amount

NUM_JOBS = amount(quick=100, soak=500)
ONE_IN = amount(quick=20, soak=100)


@pytest.mark.fault("F21")
@pytest.mark.timeout(amount(quick=60, soak=300))
def test_a_prompt_too_large_for_the_device_is_computed_in_parts_and_disturbs_nobody(cluster):
    for number in range(NUM_JOBS):
        prompt = f"prompt {number}"
        if number % ONE_IN == 0:
            prompt = f"{HUNGRY * 20} {number}"
        cluster.ledger.submit(cluster.queue, prompt, 10)

    worker = cluster.start_worker()
    cluster.wait_until_settled()

    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.queue.totals(QUEUE)["claimed"] == NUM_JOBS
    assert worker.events("turn failed") == []
    assert cluster.drain(worker) == 0
