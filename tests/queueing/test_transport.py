"""The transport as kombu sees it: our queues are JobQueue's, all others are stock Redis."""

import json

import pytest
from kombu import Connection, Consumer, Queue

from queueing.queue import ClaimCall, JobQueue
from queueing.transport import Room
from tests.support.jobs import QUEUE, a_job, enqueue

TRANSPORT = "queueing.transport:Transport"


class HeldBack:
    """An intake that takes up to so many jobs and keeps what it is given."""

    def __init__(self, queue, limit):
        self.queue = queue
        self.worker = "w1"
        self.accepted = []
        self.settled = []
        self.cancelled = []
        self._limit = limit

    def room(self):
        return Room(self._limit - len(self.accepted), held=len(self.accepted))

    def call_id(self, queue):
        return f"{queue}-{len(self.accepted)}"

    def answered(self, queue):
        pass

    def reassert(self):
        pass

    def accept(self, claim):
        self.accepted.append(claim)

    def settle(self, lease, *, requeue):
        self.settled.append((lease.job_id, requeue))

    def cancel(self, job_id):
        self.cancelled.append(job_id)


@pytest.fixture
def jobs(client):
    return JobQueue(client)


@pytest.fixture
def connect_with(redis_url):
    """Return a way to a connection whose channels consume through an intake."""
    connections = []

    def connect(intake=None):
        options = {"intake": intake} if intake else {}
        connections.append(Connection(redis_url, transport=TRANSPORT, transport_options=options))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()


def received(connection, callback, count):
    """Consume from the job queue until so many messages came."""
    messages = []

    def on_message(body, message):
        messages.append((body, message))
        callback(message)

    with Consumer(connection, [Queue(QUEUE, no_declare=True)], callbacks=[on_message]):
        while len(messages) < count:
            connection.drain_events(timeout=5)
    return messages


def test_a_job_comes_as_a_task_message_that_holds_nothing_but_its_id(jobs, connect_with):
    enqueue(jobs, a_job("job_a", request="a secret prompt"))
    intake = HeldBack(jobs, limit=4)

    ((body, message),) = received(connect_with(intake), lambda message: message.ack(), 1)

    assert body[0] == ["job_a"]
    assert message.headers["id"] == "job_a"
    assert message.headers["task"] == "promptmill.generate"
    assert "secret" not in str(message.headers) + str(body)
    assert intake.accepted[0].request == "a secret prompt"


def test_what_a_message_knows_undecoded_is_what_its_body_says(jobs, connect_with):
    enqueue(jobs, a_job("job_a"))

    ((body, message),) = received(
        connect_with(HeldBack(jobs, limit=1)), lambda message: message.ack(), 1
    )

    assert json.loads(message.body) == body == message.payload


def test_acknowledging_settles_and_rejecting_hands_back(jobs, connect_with):
    enqueue(jobs, a_job("job_a"), a_job("job_b"))
    intake = HeldBack(jobs, limit=4)

    received(
        connect_with(intake),
        lambda message: (
            message.ack() if message.headers["id"] == "job_a" else message.reject(requeue=True)
        ),
        2,
    )

    assert sorted(intake.settled) == [("job_a", False), ("job_b", True)]


def test_no_more_is_claimed_than_there_is_room_for(jobs, connect_with):
    enqueue(jobs, *[a_job() for _ in range(5)])
    intake = HeldBack(jobs, limit=3)

    received(connect_with(intake), lambda _message: None, 3)

    assert len(intake.accepted) == 3
    assert len(jobs.claim(QUEUE, "w2", 9, call=ClaimCall())) == 2


def test_a_job_queue_takes_no_messages(connect_with):
    channel = connect_with().default_channel

    with pytest.raises(ValueError, match="JobQueue.enqueue"):
        channel.basic_publish(channel.prepare_message("x"), exchange="", routing_key=QUEUE)


def test_other_queues_are_kombus_own(connect_with):
    with connect_with() as connection, connection.SimpleQueue("control") as queue:
        queue.put("hello")

        message = queue.get(timeout=5)
        message.ack()

        assert message.payload == "hello"


def test_purging_drops_no_accepted_job(jobs, connect_with):
    enqueue(jobs, a_job())
    channel = connect_with(HeldBack(jobs, limit=1)).default_channel

    assert channel.queue_purge(QUEUE) == 0

    assert len(jobs.claim(QUEUE, "w2", 9)) == 1
