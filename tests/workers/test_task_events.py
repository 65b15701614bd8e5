"""Celery's events as a watcher gets them: on a real server, through our dispatcher."""

import base64
import json

import pytest

from workers.celery_config import make_celery
from workers.intake import Intake
from workers.task_events import GatheringDispatcher


@pytest.fixture
def told(store):
    """Return a way to the next message of events; None when there is none."""
    with store.pubsub() as subscription:
        subscription.psubscribe("*celeryev*")
        subscription.get_message(timeout=5)

        def next_events():
            message = subscription.get_message(timeout=1)
            return message and json.loads(base64.b64decode(json.loads(message["data"])["body"]))

        yield next_events


@pytest.fixture
def app(redis_url, jobs):
    """Return a worker's app."""
    with make_celery("test", redis_url, Intake(jobs, "w1", slots=4)) as app:
        yield app


@pytest.fixture
def asked():
    """Return the list that every request for a flush is put in."""
    return []


@pytest.fixture
def dispatcher(app, asked):
    """Return the dispatcher as a worker's consumer makes it."""
    with app.connection_for_write() as connection:
        yield app.events.Dispatcher(
            connection,
            hostname="w1",
            buffer_group=["task"],
            on_send_buffered=lambda: asked.append(True),
        )


def test_a_worker_gathers_its_events(dispatcher):
    assert isinstance(dispatcher, GatheringDispatcher)


def test_what_a_turn_tells_goes_out_as_one_message(dispatcher, asked, told):
    for number in range(150):
        dispatcher.send("task-received", uuid=f"job_{number}")

    dispatcher.flush()

    assert asked == [True]
    assert [event["uuid"] for event in told()] == [f"job_{number}" for number in range(150)]


def test_the_next_turn_is_asked_for_again(dispatcher, asked):
    dispatcher.send("task-received", uuid="job_a")
    dispatcher.flush()

    dispatcher.send("task-succeeded", uuid="job_a")

    assert asked == [True, True]


def test_what_is_not_of_a_task_goes_out_at_once(dispatcher, asked, told):
    dispatcher.send("worker-heartbeat")

    assert told()["type"] == "worker-heartbeat"
    assert asked == []
