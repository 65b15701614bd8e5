import pytest

from queueing.clock import ManualClock
from queueing.deliveries import (
    AttemptEnd,
    AttemptNote,
    DeliveryLog,
    ReplayAnswer,
    Verdict,
)
from queueing.endpoints import EndpointForm, EndpointStore, EventType
from queueing.job import WEBHOOK_QUEUE, Job, JobResult, JobState, Outcome
from queueing.outbox import decode_delivery
from queueing.pages import PageQuery
from queueing.queue import JobQueue
from queueing.store import connect

NOTE = AttemptNote("5xx", 503, 12)
FAILED = Verdict(AttemptEnd.FAILED)
GIVEN_UP = Verdict(AttemptEnd.GIVEN_UP)
HOUR_MS = 3_600_000


class World:
    """A queue, one endpoint of tenant a for job.completed, and its deliveries."""

    def __init__(self, url):
        client = connect(url)
        self.clock = ManualClock()
        self.queue = JobQueue(client, clock=self.clock)
        self.endpoints = EndpointStore(client, clock=self.clock)
        self.log = DeliveryLog(client, clock=self.clock)
        form = EndpointForm("mine", "https://hooks.example.com/", (EventType.JOB_COMPLETED,))
        self.id = self.endpoints.create("a", form)[0].id

    @property
    def endpoint(self):
        return self.endpoints.get(self.id, "a")

    @property
    def wait_s(self):
        receiver = self.endpoints.receiver(self.id)
        assert receiver is not None
        return receiver.wait_s

    def end_a_job(self, name):
        """Complete job_<name> and claim its delivery."""
        self.queue.enqueue(Job(f"job_{name}", "generate.m", "{}", tenant="a"))
        (claim,) = self.queue.claim("generate.m", "engine", limit=1)
        self.queue.finish(Outcome(claim.lease, JobResult(JobState.COMPLETED)))
        return self.claim()

    def claim(self):
        (delivery,) = self.queue.claim(WEBHOOK_QUEUE, "cpu", limit=1)
        return delivery

    def finish(self, claim, state):
        self.queue.finish(Outcome(claim.lease, JobResult(state)))
        self.clock.advance(ms=1)
        return claim.lease.job_id

    def listed(self, *states):
        return [r.id for r in self.log.page(self.id, PageQuery(limit=100), *states).items]

    def fail(self, verdict=FAILED):
        return self.log.note(self.id, "dlv_x", NOTE, verdict)

    def fail_often(self, times, verdict=FAILED):
        """Fail that many times; return how long the endpoint rests after each."""
        waits = []
        for _ in range(times):
            self.fail(verdict)
            waits.append(self.wait_s)
        return waits


@pytest.fixture
def world(redis_url):
    return World(redis_url)


def test_a_delivery_is_listed_with_its_event_and_attempts(world):
    claim = world.end_a_job("1")

    world.log.note(world.id, claim.lease.job_id, NOTE, FAILED)

    record = world.log.get(world.id, claim.lease.job_id)
    assert (record.event_id, record.event_type) == ("evt_1", "job.completed")
    assert record.state is JobState.RUNNING
    (attempt,) = record.attempts
    assert (attempt.result, attempt.status, attempt.duration_ms) == ("5xx", 503, 12)
    assert attempt.at_s == world.clock.now_ms() / 1000


def test_deliveries_are_listed_by_state_newest_first(world):
    failed = world.finish(world.end_a_job("1"), JobState.FAILED)
    done = world.finish(world.end_a_job("2"), JobState.COMPLETED)

    assert world.listed() == [done, failed]
    assert world.listed([JobState.FAILED]) == [failed]


def test_a_delivery_is_not_found_under_another_endpoint(world):
    delivery_id = world.finish(world.end_a_job("1"), JobState.FAILED)

    assert world.log.get("whep_other", delivery_id) is None


def test_a_failed_delivery_is_sent_again_under_its_events_id(world):
    failed = world.finish(world.end_a_job("1"), JobState.FAILED)

    replay = world.log.replay(world.id, "a", failed)

    assert replay.answer is ReplayAnswer.REPLAYED
    claim = world.claim()
    assert claim.lease.job_id == replay.delivery_id
    delivery = decode_delivery(claim.request)
    assert (delivery.event_id, delivery.endpoint_id) == ("evt_1", world.id)
    assert (delivery.attempts, delivery.blocked) == (0, 0)
    assert world.log.get(world.id, failed).replayed_as == replay.delivery_id
    assert world.listed() == [replay.delivery_id, failed]


def test_a_delivery_is_replayed_once(world):
    failed = world.finish(world.end_a_job("1"), JobState.FAILED)
    world.log.replay(world.id, "a", failed)

    assert world.log.replay(world.id, "a", failed).answer is ReplayAnswer.REPLAYED_BEFORE


def test_a_delivery_that_is_under_way_is_not_replayed(world):
    claim = world.end_a_job("1")

    answer = world.log.replay(world.id, "a", claim.lease.job_id).answer

    assert answer is ReplayAnswer.STILL_LIVE


@pytest.mark.parametrize(
    ("endpoint_id", "tenant"), [("own", "b"), ("whep_other", "a")], ids=["tenant", "endpoint"]
)
def test_nobody_replays_what_is_not_his(world, endpoint_id, tenant):
    failed = world.finish(world.end_a_job("1"), JobState.FAILED)
    endpoint_id = world.id if endpoint_id == "own" else endpoint_id

    answer = world.log.replay(endpoint_id, tenant, failed).answer

    assert answer is ReplayAnswer.UNKNOWN


def test_all_that_failed_is_replayed_at_once_and_only_once(world):
    world.finish(world.end_a_job("1"), JobState.FAILED)
    world.finish(world.end_a_job("2"), JobState.FAILED)
    world.finish(world.end_a_job("3"), JobState.COMPLETED)

    first = world.log.replay_failed(world.id, "a")
    second = world.log.replay_failed(world.id, "a")

    assert len(first) == 2
    assert second == []


def test_a_delivery_can_be_replayed_as_long_as_it_is_listed(world, redis_url):
    delivery_id = world.finish(world.end_a_job("1"), JobState.FAILED)

    with connect(redis_url) as client:
        kept_ms = client.pttl(f"{{pm}}:job:{delivery_id}:request")
        listed_ms = client.pttl(f"{{pm}}:job:{delivery_id}")

    assert abs(kept_ms - listed_ms) < 1_000


def test_five_failures_in_a_row_pause_an_endpoint_longer_and_longer(world):
    waits = world.fail_often(12)

    assert waits == [0, 0, 0, 0, 10, 20, 40, 80, 160, 320, 600, 600]
    assert world.endpoint.failures == 12
    assert world.endpoint.is_enabled


def test_a_success_ends_the_pause(world):
    world.fail_often(6)

    world.log.note(world.id, "dlv_x", NOTE, Verdict(AttemptEnd.DELIVERED))

    assert world.wait_s == 0
    assert (world.endpoint.failures, world.endpoint.failing_since_s) == (0, None)


def test_silence_that_was_asked_for_is_kept(world):
    world.fail(Verdict(AttemptEnd.FAILED, silence_s=30))

    assert world.wait_s == 30


def test_a_reason_disables_an_endpoint_at_once(world):
    disabled = world.fail(Verdict(AttemptEnd.GIVEN_UP, disable_reason="gone"))

    assert disabled
    assert world.endpoint.disabled_reason == "gone"
    assert not world.endpoints.receiver(world.id).is_enabled


def test_three_days_without_a_success_disable_an_endpoint(world):
    world.fail()
    world.clock.advance(ms=72 * HOUR_MS - 1)

    too_early = world.fail(GIVEN_UP)
    world.clock.advance(ms=1)
    in_time = world.fail(GIVEN_UP)

    assert (too_early, in_time) == (False, True)
    assert world.endpoint.disabled_reason == "nothing was delivered for three days"


def test_enabling_again_forgets_the_failures(world):
    world.fail(Verdict(AttemptEnd.GIVEN_UP, disable_reason="gone"))

    enabled = world.endpoints.update(world.id, "a", EndpointForm(is_enabled=True))

    assert enabled.is_enabled
    assert (enabled.failures, enabled.failing_since_s, enabled.paused_until_s) == (0, None, None)


def test_what_deliveries_disabled_is_counted_until_it_is_enabled_or_deleted(world):
    world.fail(Verdict(AttemptEnd.GIVEN_UP, disable_reason="gone"))
    (listed,) = world.endpoints.disabled_page(PageQuery(limit=9)).items
    num_at_first = world.endpoints.num_disabled()

    world.endpoints.update(world.id, "a", EndpointForm(is_enabled=True))
    num_when_enabled = world.endpoints.num_disabled()
    world.fail(Verdict(AttemptEnd.GIVEN_UP, disable_reason="gone"))
    world.endpoints.delete(world.id, "a")

    assert (listed.id, listed.tenant, listed.disabled_reason) == (world.id, "a", "gone")
    assert (num_at_first, num_when_enabled, world.endpoints.num_disabled()) == (1, 0, 0)


def test_what_its_owner_disabled_is_no_fault_to_be_counted(world):
    world.endpoints.update(world.id, "a", EndpointForm(is_enabled=False))

    assert world.endpoints.num_disabled() == 0


def test_a_test_is_a_sample_event_ahead_of_others(world):
    world.queue.enqueue(Job("job_1", "generate.m", "{}", tenant="a"))
    (claim,) = world.queue.claim("generate.m", "engine", limit=1)
    world.queue.finish(Outcome(claim.lease, JobResult(JobState.COMPLETED)))

    delivery_id = world.log.test(world.id, "a", EventType.BATCH_FAILED)

    claim = world.claim()
    assert claim.lease.job_id == delivery_id
    delivery = decode_delivery(claim.request)
    assert delivery.is_test
    assert '"type":"batch.failed"' in delivery.body
    assert '"data":{"id":"batch_' in delivery.body


def test_a_test_of_somebody_elses_endpoint_is_refused(world):
    assert world.log.test(world.id, "b", EventType.BATCH_FAILED) is None


def test_a_failed_test_says_nothing_of_the_endpoint(world):
    waits = world.fail_often(9, Verdict(AttemptEnd.TESTED))

    assert waits == [0] * 9
    assert world.endpoint.failures == 0
