import pytest

from queueing.endpoints import MAX_ENDPOINTS, EndpointForm, EndpointStore, EventType
from queueing.errors import FailureCode, RequestError
from queueing.job import (
    WEBHOOK_QUEUE,
    BatchLine,
    Choice,
    Job,
    JobResult,
    JobState,
    Outcome,
)
from queueing.outbox import decode_delivery
from queueing.pages import PageQuery

URL = "https://hooks.example.com/in"
COMPLETED = (EventType.JOB_COMPLETED,)


@pytest.fixture
def endpoints(client, clock):
    return EndpointStore(client, clock=clock)


def a_form(**fields):
    return EndpointForm(**({"name": "mine", "url": URL, "event_types": COMPLETED} | fields))


def register(endpoints, tenant="a", **fields):
    endpoint, _ = endpoints.create(tenant, a_form(**fields))
    return endpoint


def register_in_turn(endpoints, clock, count):
    ids = []
    for _ in range(count):
        ids.append(register(endpoints).id)
        clock.advance(ms=1)
    return ids


def end(queue, job_id, result, tenant="a", **fields):
    queue.enqueue(Job(job_id, "generate.m", "{}", tenant=tenant, **fields))
    (claim,) = queue.claim("generate.m", "engine", limit=1)
    queue.finish(Outcome(claim.lease, result))


def queued(queue):
    claims = queue.claim(WEBHOOK_QUEUE, "cpu", limit=100)
    return [decode_delivery(claim.request) for claim in claims]


def test_a_registered_endpoint_is_its_tenants_alone(endpoints):
    endpoint, secret = endpoints.create("a", a_form())

    assert endpoints.get(endpoint.id, "a") == endpoint
    assert endpoints.get(endpoint.id, "b") is None
    assert endpoints.update(endpoint.id, "b", a_form(name="theirs")) is None
    assert endpoints.rotate(endpoint.id, "b", overlap_ms=0) is None
    assert not endpoints.delete(endpoint.id, "b")
    assert endpoints.page("b", PageQuery(limit=10)).items == []
    assert (endpoint.name, endpoint.url, endpoint.is_enabled) == ("mine", URL, True)
    assert endpoint.event_types == ("job.completed",)
    assert endpoint.secret_hint.endswith(secret.text[-4:])
    assert secret.text not in repr(endpoint)


def test_endpoints_are_listed_newest_first_with_a_cursor(endpoints, clock):
    ids = register_in_turn(endpoints, clock, 3)

    first = endpoints.page("a", PageQuery(limit=2))
    rest = endpoints.page("a", PageQuery(limit=2, after=first.items[-1].id))

    assert [endpoint.id for endpoint in first.items] == [ids[2], ids[1]]
    assert first.has_more
    assert [endpoint.id for endpoint in rest.items] == [ids[0]]
    assert not rest.has_more


def test_there_is_a_limit_to_endpoints(endpoints, clock):
    register_in_turn(endpoints, clock, MAX_ENDPOINTS)

    with pytest.raises(RequestError) as caught:
        register(endpoints)

    assert caught.value.code is FailureCode.INVALID_REQUEST
    assert register(endpoints, tenant="b")


def test_an_update_changes_what_it_names_and_nothing_else(endpoints, clock):
    endpoint = register(endpoints)
    clock.advance(ms=5_000)

    updated = endpoints.update(endpoint.id, "a", EndpointForm(name="renamed"))

    assert (updated.name, updated.url) == ("renamed", URL)
    assert updated.event_types == endpoint.event_types
    assert updated.created_s == endpoint.created_s
    assert updated.updated_s == endpoint.updated_s + 5


def test_an_update_without_a_change_leaves_the_time_of_change(endpoints, clock):
    endpoint = register(endpoints)
    clock.advance(ms=5_000)

    assert endpoints.update(endpoint.id, "a", a_form(is_enabled=True)) == endpoint


def test_the_end_of_a_job_is_queued_for_every_endpoint_that_asked_for_it(endpoints, queue):
    asked = [register(endpoints).id for _ in range(2)]
    register(endpoints, event_types=(EventType.JOB_FAILED,))
    register(endpoints, tenant="b")

    end(queue, "job_1", JobResult(JobState.COMPLETED))

    deliveries = queued(queue)
    assert {delivery.endpoint_id for delivery in deliveries} == set(asked)
    assert {delivery.event_id for delivery in deliveries} == {"evt_1"}
    assert len({delivery.body for delivery in deliveries}) == 1


def test_a_job_tells_its_own_receiver_and_the_endpoints_of_one_event(endpoints, queue):
    endpoint = register(endpoints)

    end(queue, "job_1", JobResult(JobState.COMPLETED), webhook_url=URL)

    own, registered = sorted(queued(queue), key=lambda delivery: delivery.endpoint_id or "")
    assert (own.url, own.endpoint_id) == (URL, None)
    assert (registered.url, registered.endpoint_id) == (None, endpoint.id)
    assert own.body == registered.body


def test_changed_event_types_count_from_the_next_end_on(endpoints, queue):
    endpoint = register(endpoints)

    endpoints.update(endpoint.id, "a", a_form(event_types=(EventType.JOB_FAILED,)))

    end(queue, "job_1", JobResult(JobState.COMPLETED))
    end(queue, "job_2", JobResult(JobState.FAILED))
    assert [delivery.event_id for delivery in queued(queue)] == ["evt_2"]


def test_a_disabled_endpoint_gets_nothing_until_it_is_enabled(endpoints, queue):
    endpoint = register(endpoints)

    disabled = endpoints.update(endpoint.id, "a", EndpointForm(is_enabled=False))
    end(queue, "job_1", JobResult(JobState.COMPLETED))
    enabled = endpoints.update(endpoint.id, "a", EndpointForm(is_enabled=True))
    end(queue, "job_2", JobResult(JobState.COMPLETED))

    assert (disabled.is_enabled, disabled.disabled_reason) == (False, "disabled by its owner")
    assert (enabled.is_enabled, enabled.disabled_reason) == (True, None)
    assert [delivery.event_id for delivery in queued(queue)] == ["evt_2"]


def test_a_deleted_endpoint_leaves_nothing_behind(endpoints, queue, client):
    endpoint = register(endpoints)

    assert endpoints.delete(endpoint.id, "a")

    end(queue, "job_1", JobResult(JobState.COMPLETED))
    assert queued(queue) == []
    assert endpoints.receiver(endpoint.id) is None
    assert not [key for key in client.scan_iter() if "endpoint" in key]


def a_text(reason):
    return JobResult(JobState.COMPLETED, choices=(Choice(0, '"finish_reason":"length"', reason),))


@pytest.mark.parametrize(
    ("result", "event"),
    [
        (a_text("stop"), "response.completed"),
        (a_text("length"), "response.incomplete"),
        (JobResult(JobState.FAILED), "response.failed"),
    ],
)
def test_a_response_ends_in_the_events_of_its_own_surface(endpoints, queue, result, event):
    register(endpoints, event_types=tuple(EventType))

    end(queue, "resp_1", result)

    (delivery,) = queued(queue)
    assert f'"type":"{event}"' in delivery.body
    assert '"data":{"id":"resp_1"}' in delivery.body


@pytest.mark.parametrize(
    ("act", "event"),
    [("cancel", "response.cancelled"), ("expire", "response.failed")],
)
def test_a_response_that_never_ran_tells_so(endpoints, queue, clock, act, event):
    register(endpoints, event_types=tuple(EventType))
    queue.enqueue(Job("resp_1", "generate.m", "{}", tenant="a", deadline_s=1))

    acts = {
        "cancel": lambda: queue.cancel("resp_1", "a"),
        "expire": lambda: (clock.advance(ms=1_001), queue.expire("generate.m")),
    }
    acts[act]()

    (delivery,) = queued(queue)
    assert f'"type":"{event}"' in delivery.body


def test_what_somebody_waits_for_and_lines_of_batches_are_no_events(endpoints, queue):
    register(endpoints, event_types=tuple(EventType))
    queue.enqueue(Job("batch_1", "batches", "", tenant="a"))
    (tick,) = queue.claim("batches", "cpu", limit=1)
    line = BatchLine("batch_1", 1, "one", tick.lease.fence)

    end(queue, "chatcmpl-1", JobResult(JobState.COMPLETED))
    end(queue, "job_line", JobResult(JobState.COMPLETED), batch=line)

    assert queued(queue) == []


def test_the_end_of_a_batch_is_an_event(endpoints, queue):
    register(endpoints, event_types=tuple(EventType))
    queue.enqueue(Job("batch_1", "batches", "", tenant="a"))

    queue.cancel("batch_1", "a")

    (delivery,) = queued(queue)
    assert '"type":"batch.cancelled"' in delivery.body


def test_rotation_keeps_the_old_secret_signing_as_long_as_asked(endpoints, clock):
    endpoint, old = endpoints.create("a", a_form())

    new = endpoints.rotate(endpoint.id, "a", overlap_ms=60_000)

    assert endpoints.receiver(endpoint.id).signers == (new, old)
    clock.advance(ms=60_000)
    assert endpoints.receiver(endpoint.id).signers == (new,)


def test_rotation_without_overlap_ends_the_old_secret_at_once(endpoints):
    endpoint, _ = endpoints.create("a", a_form())
    endpoints.rotate(endpoint.id, "a", overlap_ms=60_000)

    newest = endpoints.rotate(endpoint.id, "a", overlap_ms=0)

    assert endpoints.receiver(endpoint.id).signers == (newest,)
