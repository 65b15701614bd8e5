"""One call for many jobs leaves the store as one call for each does."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queueing.clock import ManualClock
from queueing.errors import PromptmillError
from queueing.job import BatchLine, Outcome, Priority
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from tests.support.jobs import QUEUE, a_job, a_result
from tests.support.load import amount

LIMITS = QueueLimits(lease_ms=15_000, max_queued_jobs=20)


def refusal_of(call, argument):
    """Return the type of the error that a call raises, if any."""
    try:
        call(argument)
    except PromptmillError as error:
        return type(error)
    return None


def first_refusal_of(call, arguments):
    """Make every call; return what the first that was refused raised, if any was."""
    refusals = [refusal_of(call, argument) for argument in arguments]
    return next((refusal for refusal in refusals if refusal), None)


def all_there_is(client, prefix):
    """Return every key under a prefix with what it holds."""
    readers = {
        "string": client.get,
        "hash": client.hgetall,
        "set": client.smembers,
        "list": lambda key: client.lrange(key, 0, -1),
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return {
        key.removeprefix(prefix): readers[client.type(key)](key)
        for key in client.scan_iter(f"{prefix}*")
    }


jobs_to_send = st.lists(
    st.builds(
        lambda number, **fields: a_job(f"job_{number}", **fields),
        st.integers(0, 30),
        tenant=st.sampled_from(["ann", "bob"]),
        priority=st.sampled_from(Priority),
        cost=st.integers(1, 500),
        weight=st.sampled_from([1.0, 2.0]),
        deadline_s=st.sampled_from([None, None, 0.0, 3.0]),
        not_before_s=st.sampled_from([0.0, 0.0, 0.0, 1.0]),
        webhook_url=st.sampled_from([None, None, "https://x.test/"]),
        batch=st.sampled_from([None, None, None, BatchLine("batch_x", 1, "first", fence=1)]),
    ),
    max_size=40,
)


@settings(
    max_examples=amount(quick=25, soak=1_000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    jobs=jobs_to_send, limit=st.integers(1, 30), tokens=st.lists(st.integers(1, 900), max_size=9)
)
def test_many_at_once_are_the_same_as_one_after_the_other(redis_url, jobs, limit, tokens):
    with connect(redis_url) as client:
        client.flushdb()
        clock = ManualClock()
        at_once = JobQueue(client, LIMITS, prefix="{m}:", clock=clock)
        singly = JobQueue(client, LIMITS, prefix="{s}:", clock=clock)

        refusals = (
            refusal_of(at_once.enqueue_many, jobs),
            first_refusal_of(singly.enqueue, jobs),
        )
        assert refusals[0] is refusals[1]
        assert all_there_is(client, "{m}:") == all_there_is(client, "{s}:")

        clock.advance(1_500)
        claims = at_once.claim(QUEUE, "w1", limit)
        assert claims == [claim for _ in range(limit) for claim in singly.claim(QUEUE, "w1", 1)]
        assert all_there_is(client, "{m}:") == all_there_is(client, "{s}:")

        clock.advance(1_000)
        outcomes = [
            Outcome(claim.lease, a_result(tokens=number, stages={"decode_ms": 1.5}))
            for claim, number in zip(claims, tokens, strict=False)
        ]
        states = at_once.finish_many([*outcomes, *outcomes[:1]])
        assert states == [singly.finish(outcome) for outcome in [*outcomes, *outcomes[:1]]]
        assert all_there_is(client, "{m}:") == all_there_is(client, "{s}:")
