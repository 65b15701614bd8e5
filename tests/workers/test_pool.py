"""A real Celery worker on the fake model, seen as operators see it: through Celery."""

import base64
import json
import socket

import pytest

from queueing.job import EMBED_TASK, GENERATE_TASK, JobKind, JobState, Priority
from queueing.wire import EmbedRequest, GenerateRequest, encode_request
from tests.support.fake_engine import HANGS
from tests.support.jobs import MODEL, QUEUE, TENANT, a_job, enqueue, state_of
from tests.support.ledger import ALL_IS_WELL
from workers.celery_config import make_celery
from workers.pool import EXIT_FATAL

CANARY = "CANARY-7f3a"


@pytest.fixture
def cluster(make_cluster):
    return make_cluster(slots=4, lease_s=30.0, renew_s=5.0)


@pytest.fixture
def worker(cluster):
    """Return a worker that is ready, with steps slow enough to look at."""
    worker = cluster.start_worker(step_ms=20)
    cluster.wait_until(lambda: "ready" in worker.log)
    return worker


@pytest.fixture
def control_of():
    """Return a way to Celery's remote control of a cluster's workers."""
    apps = []

    def control(cluster):
        apps.append(make_celery("test", cluster.server.url))
        return apps[-1].control

    yield control
    for app in apps:
        app.close()


@pytest.fixture
def control(cluster, control_of):
    return control_of(cluster)


def running(cluster, count, prompt="prompt", max_tokens=3_000):
    """Have `count` long jobs run; return their ids."""
    ids = [cluster.ledger.submit(cluster.queue, f"{prompt} {n}", max_tokens) for n in range(count)]
    cluster.wait_until(lambda: cluster.num_running() == count)
    return ids


def asked(control, question):
    """Return the one worker's answer."""
    worker = f"w1@{socket.gethostname()}"
    (answer,) = getattr(control.inspect([worker], timeout=5), question)().values()
    return answer


@pytest.mark.usefixtures("worker")
def test_celery_shows_the_running_jobs_under_their_own_ids(cluster, control):
    ids = running(cluster, 3)

    active = asked(control, "active")

    assert sorted(task["id"] for task in active) == sorted(ids)
    assert {task["name"] for task in active} == {GENERATE_TASK}


@pytest.mark.usefixtures("worker")
def test_celery_knows_the_task_and_the_pool(cluster, control):
    running(cluster, 2)

    stats = asked(control, "stats")

    assert GENERATE_TASK in asked(control, "registered")
    assert stats["pool"]["jobs"] == 2


def test_nothing_that_celery_shows_holds_a_prompt(cluster, worker, control):
    running(cluster, 2, prompt=CANARY)

    shown = json.dumps(
        [asked(control, "active"), asked(control, "reserved"), asked(control, "stats")]
    )

    assert CANARY not in shown
    assert CANARY not in worker.log


@pytest.mark.usefixtures("worker")
def test_the_events_of_a_job_hold_its_id_and_nothing_of_its_text(cluster):
    with cluster.client.pubsub() as events:
        events.psubscribe("*celeryev*")

        job_id = cluster.ledger.submit(cluster.queue, f"{CANARY} {CANARY}", 3)

        told = told_until("task-succeeded", events)
    own = [event["type"] for event in told if event.get("uuid") == job_id]
    assert own == ["task-received", "task-started", "task-succeeded"]
    assert CANARY not in json.dumps(told)


def test_an_embedding_is_a_task_of_its_own_that_can_be_revoked(make_cluster, control_of):
    cluster = make_cluster(slots=4, step_tokens=16)
    cluster.start_worker(step_ms=100)
    control = control_of(cluster)
    request = encode_request(EmbedRequest(MODEL, prompt="x" * 3_000))
    enqueue(cluster.queue, a_job("job_embed", request=request, kind=JobKind.EMBED))
    cluster.wait_until(lambda: cluster.num_running() == 1)

    active = asked(control, "active")
    control.revoke("job_embed", terminate=True)

    assert [(task["id"], task["name"]) for task in active] == [("job_embed", EMBED_TASK)]
    cluster.wait_until(lambda: state_of(cluster.queue, "job_embed") is JobState.CANCELLED)


def told_until(last, events):
    """Return Celery's events up to the first of a type."""
    told: list[dict[str, object]] = []
    while not any(event["type"] == last for event in told):
        message = events.get_message(timeout=10)
        assert message is not None, f"no {last} came"
        if message["type"] == "pmessage":
            body = base64.b64decode(json.loads(message["data"])["body"])
            event = json.loads(body)
            told += event if isinstance(event, list) else [event]
    return told


@pytest.mark.fault("F24")
def test_revoking_a_running_job_ends_it_as_cancelled_and_frees_its_slot(cluster, worker, control):
    first, *_ = running(cluster, 4)
    waiting = cluster.ledger.submit(cluster.queue, "next in line", 3_000)

    control.revoke(first, terminate=True)

    cluster.wait_until(lambda: state_of(cluster.queue, waiting) is JobState.RUNNING)
    assert state_of(cluster.queue, first) is JobState.CANCELLED
    assert worker.is_running


@pytest.mark.fault("F24")
@pytest.mark.usefixtures("worker")
def test_cancelling_a_running_job_frees_its_slot_at_once(cluster, control):
    first, *_ = running(cluster, 4)
    waiting = cluster.ledger.submit(cluster.queue, "next in line", 3_000)

    cluster.queue.cancel(first, TENANT)

    cluster.wait_until(lambda: state_of(cluster.queue, waiting) is JobState.RUNNING)
    assert first not in [task["id"] for task in asked(control, "active")]


@pytest.mark.usefixtures("worker")
def test_revoking_a_queued_job_ends_it_when_a_worker_gets_to_it(cluster, control):
    control.revoke("job_revoked")
    cluster.wait_until(lambda: "job_revoked" in asked(control, "revoked"))

    enqueue(cluster.queue, a_job("job_revoked", request="{}"))

    cluster.wait_until(lambda: state_of(cluster.queue, "job_revoked") is JobState.CANCELLED)


def test_a_full_worker_serves_an_urgent_job_without_losing_anybody(cluster, worker):
    bulk = [
        cluster.ledger.submit(cluster.queue, f"bulk {n}", 100, priority=Priority.BULK)
        for n in range(4)
    ]
    cluster.wait_until(lambda: cluster.num_running() == 4)

    urgent = cluster.ledger.submit(cluster.queue, "now", 3, priority=Priority.REALTIME)
    cluster.wait_until(lambda: state_of(cluster.queue, urgent) is JobState.COMPLETED)

    assert {state_of(cluster.queue, job_id) for job_id in bulk} == {JobState.RUNNING}
    cluster.wait_until_settled()
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.drain(worker) == 0


@pytest.mark.fault("F23")
def test_a_deadline_in_mid_generation_expires_the_job_and_frees_its_blocks(cluster, worker):
    late = cluster.ledger.submit(cluster.queue, "late", 3_000, JobState.EXPIRED, deadline_s=0.5)

    cluster.wait_until(lambda: state_of(cluster.queue, late) is JobState.EXPIRED)

    record = cluster.queue.get(late, TENANT)
    assert 0 < record.result.usage.completion_tokens <= 26
    assert cluster.client.hget(f"{{pm}}:job:{late}", "stage") == "decode"
    assert cluster.drain(worker) == 0


def test_a_request_that_cannot_be_read_fails_its_job_alone(cluster, worker):
    running(cluster, 1)
    enqueue(cluster.queue, a_job("job_broken", request="no JSON"))

    cluster.wait_until(lambda: state_of(cluster.queue, "job_broken") is JobState.FAILED)

    assert cluster.num_running() == 1
    assert worker.is_running


@pytest.mark.usefixtures("worker")
def test_a_request_of_a_newer_version_is_handed_back(cluster):
    newer = encode_request(GenerateRequest(MODEL, 3, prompt="x")).replace('"v":1', '"v":99')

    enqueue(cluster.queue, a_job("job_newer", request=newer))

    cluster.wait_until(lambda: cluster.queue.depth(QUEUE).later == 1)
    assert cluster.queue.get("job_newer", TENANT).losses == 0


@pytest.mark.fault("F22")
def test_an_engine_that_hangs_ends_its_process(make_cluster):
    cluster = make_cluster(watchdog_s=0.5)
    worker = cluster.start_worker()
    cluster.ledger.submit(cluster.queue, f"prompt {HANGS}", 5)

    assert worker.wait() == EXIT_FATAL
    assert worker.events("watchdog expired")


@pytest.mark.usefixtures("worker")
def test_jobs_in_a_row_do_not_wait_for_the_event_loops_poll(cluster):
    for number in range(60):
        cluster.ledger.submit(cluster.queue, f"prompt {number}", 1)

    # With a second's wait between a finished job and the next claim this takes 15 s.
    cluster.wait_until_settled(limit_s=8)


def test_a_lost_lease_stops_the_work_on_its_job(make_cluster, control_of):
    cluster = make_cluster(slots=4, lease_s=30.0, renew_s=0.2)
    worker = cluster.start_worker(step_ms=20)
    (job_id,) = running(cluster, 1)

    assert cluster.queue.erase(job_id, TENANT)

    control = control_of(cluster)
    cluster.wait_until(lambda: asked(control, "active") == [])
    following = cluster.ledger.submit(cluster.queue, "what follows", 3)
    cluster.wait_until(lambda: state_of(cluster.queue, following) is JobState.COMPLETED)
    assert cluster.drain(worker) == 0
