"""Messages pushed into Redis for a worker's Celery to find: dropped, and the worker goes on."""

import base64
import json

import pytest

from queueing.job import JobState
from tests.support.cluster import Cluster
from tests.support.jobs import QUEUE, state_of
from tests.support.server import embedded_binary

FORGED = "job_" + "f" * 22


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("hostile"), embedded_binary())
    cluster.start_worker()
    yield cluster
    cluster.stop()


def envelope(body, content_type, encoding="base64", **headers):
    """Return a message as kombu's Redis transport reads it."""
    return json.dumps(
        {
            "body": base64.b64encode(body).decode() if encoding == "base64" else body,
            "content-encoding": "binary" if encoding == "base64" else "utf-8",
            "content-type": content_type,
            "headers": headers,
            "properties": {
                "body_encoding": encoding,
                "correlation_id": FORGED,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": QUEUE},
                "delivery_tag": "forged",
                "priority": 0,
            },
        }
    )


def messages(trap):
    pickled = f"cposix\nmknod\n(V{trap}\ntR.".encode()  # what calls it in whoever unpickles it
    code = f"!!python/object/apply:os.mknod ['{trap}']"
    huge = json.dumps([["x" * 10_000_000], {}, {}])
    return [
        envelope(pickled, "application/x-python-serialize", task="promptmill.generate", id=FORGED),
        envelope(code.encode(), "application/x-yaml", task="promptmill.generate", id=FORGED),
        envelope("[[], {}, {}]", "application/json", "", task="os.system", id=FORGED),
        envelope(huge, "application/json", "", task="promptmill.generate", id=FORGED),
        envelope("[7, 7]", "application/json", "", task="promptmill.generate", id=7),
        envelope("{", "application/json", ""),
        "no envelope",
    ]


def still_works(cluster, prompt):
    job_id = cluster.ledger.submit(cluster.queue, prompt, 3)
    cluster.wait_until(lambda: state_of(cluster.queue, job_id).is_terminal)
    (worker,) = cluster.workers
    return worker.is_running and state_of(cluster.queue, job_id) is JobState.COMPLETED


def test_messages_in_the_lists_of_queues_are_never_read(cluster, tmp_path):
    trap = tmp_path / "trap"
    for name in (QUEUE, "celery", f"{QUEUE}\x06\x163"):
        cluster.client.rpush(name, *messages(trap))

    works = still_works(cluster, "after lists")

    assert works
    assert not trap.exists()
    assert cluster.client.llen(QUEUE) == len(messages(trap))


def test_messages_to_remote_control_are_dropped(cluster, tmp_path):
    trap = tmp_path / "trap"
    assert still_works(cluster, "before messages")
    for message in messages(trap):
        cluster.client.publish("/0.celery.pidbox", message)

    works = still_works(cluster, "after messages")

    assert works
    assert "Refusing to deserialize" in cluster.workers[0].log
    assert not trap.exists()
