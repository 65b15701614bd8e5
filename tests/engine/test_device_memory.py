"""A device without memory for a step costs the longest prompt a delay, or the least urgent."""

import pytest

from engine.admission import AdmissionEstimate
from engine.blocks import BlockPool
from engine.engine import Engine, EngineLimits
from engine.errors import DeviceMemoryError
from engine.plan import Choice
from engine.scheduler import Scheduler, StepLimits
from engine.sequence import SamplingParams, Sequence


class SmallDevice:
    """Refuses steps of more tokens than it has memory for; remembers the sizes of the others."""

    def __init__(self, max_tokens):
        self.max_tokens = max_tokens
        self.steps = []

    def run(self, plan):
        if plan.num_tokens > self.max_tokens:
            raise DeviceMemoryError
        self.steps.append({chunk.sequence.id: chunk.num_tokens for chunk in plan.chunks})


class SameToken:
    def sample(self, hidden, sequences):  # noqa: ARG002 any hidden state will do
        return [Choice(7) for _ in sequences]


class NoVectors:
    def pool(self, hidden, plan):  # noqa: ARG002 nothing here is pooled
        return {}

    def forget(self, sequence_id):
        pass


def an_engine(device):
    scheduler = Scheduler(
        BlockPool(64, 4, cache_key=b"weights"), StepLimits(4, 64), AdmissionEstimate(), frozenset()
    )
    limits = EngineLimits(100, 200, 4, 64, 4)
    return Engine(scheduler, device, SameToken(), NoVectors(), limits)


def test_a_long_prompt_is_tried_again_in_smaller_chunks_beside_the_others():
    device = SmallDevice(max_tokens=16)
    engine = an_engine(device)
    engine.add(Sequence("short", [1], SamplingParams(max_tokens=6)))
    engine.step()
    engine.add(Sequence("long", list(range(40)), SamplingParams(max_tokens=2)))
    finished = []
    while engine.has_work:
        finished += engine.step().finished
        engine.check_integrity()

    assert device.steps[1] == {"short": 1, "long": 10}
    assert [step["short"] for step in device.steps if "short" in step] == [1] * 6
    assert {done.sequence_id: done.num_output_tokens for done in finished} == {
        "short": 6,
        "long": 2,
    }
    assert engine.capacity().free_blocks == 64


@pytest.mark.fault("F21")
def test_the_least_urgent_wait_when_there_is_no_memory_for_a_token_of_each():
    device = SmallDevice(max_tokens=2)
    engine = an_engine(device)
    for urgency, name in enumerate("abcd"):
        engine.add(Sequence(name, [1], SamplingParams(max_tokens=3), rank=(0.0, float(urgency))))
    finished = []
    while engine.has_work:
        finished += engine.step().finished
        engine.check_integrity()

    assert device.steps == [{"a": 1, "b": 1}] * 3 + [{"c": 1, "d": 1}] * 3
    assert [done.num_output_tokens for done in finished] == [3] * 4
    assert engine.capacity().free_blocks == 64


def test_a_device_that_cannot_compute_single_tokens_is_a_fault():
    engine = an_engine(SmallDevice(max_tokens=0))
    engine.add(Sequence("a", [1, 2, 3], SamplingParams(max_tokens=1)))

    with pytest.raises(DeviceMemoryError):
        engine.step()
    engine.check_integrity()
