"""Beat: the janitor's back-up."""

import os
import signal
import subprocess
import sys

import pytest

from ops.logs import Event
from queueing.errors import StoreUnavailable
from queueing.job import JANITOR_QUEUE, JobState
from tests.support.jobs import QUEUE, a_job, enqueue, state_of
from workers.beat import BeatApp, JanitorScheduler
from workers.celery_config import configure_celery
from workers.janitor import Janitor


@pytest.fixture
def cluster(make_cluster):
    return make_cluster()


@pytest.fixture
def scheduler(cluster):
    """Return the scheduler of a beat on the cluster's server."""
    app = BeatApp("test", set_as_current=False)
    configure_celery(app, cluster.server.url)
    app.janitor = Janitor(cluster.queue)
    return JanitorScheduler(app)


@pytest.fixture
def start_beat(cluster, tmp_path):
    """Return a way to start a beat as a process, once it has swept; it is gone after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start():
        log = tmp_path / f"beat-{len(started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", "beat"],
                env={"PATH": os.defpath, "PROMPTMILL_REDIS_URL": cluster.server.url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        started.append(process)
        cluster.wait_until(lambda: Event.JANITOR_RAN in log.read_text())
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def sweep(scheduler) -> None:
    scheduler.apply_async(scheduler.schedule["sweep"])


def test_beats_end_what_is_late_where_no_worker_lives(cluster, start_beat):
    enqueue(cluster.queue, a_job("late", deadline_s=0.001))

    beats = [start_beat() for _ in range(2)]

    assert state_of(cluster.queue, "late") is JobState.EXPIRED
    assert cluster.queue.totals(QUEUE)["expired"] == 1
    for beat in beats:
        beat.send_signal(signal.SIGTERM)
    assert [beat.wait(20) for beat in beats] == [0, 0]


def test_a_beat_sweeps_at_its_start(scheduler):
    assert scheduler.schedule["sweep"].is_due().is_due


def test_a_beat_makes_sure_of_the_janitors_job(cluster, scheduler):
    sweep(scheduler)
    sweep(scheduler)

    assert len(cluster.queue.claim(JANITOR_QUEUE, "cpu1", 9)) == 1


def test_a_beat_brings_back_what_was_wiped(cluster, scheduler):
    sweep(scheduler)
    cluster.client.flushall()

    sweep(scheduler)

    assert len(cluster.queue.claim(JANITOR_QUEUE, "cpu1", 9)) == 1


def test_a_beat_goes_on_after_the_store_was_away(cluster, scheduler):
    enqueue(cluster.queue, a_job("late", deadline_s=0.001))

    cluster.server.kill9()
    sweep(scheduler)
    with pytest.raises(StoreUnavailable):
        cluster.queue.queues()
    cluster.server.start()
    cluster.wait_until(lambda: cluster.queue.queues())
    sweep(scheduler)

    assert state_of(cluster.queue, "late") is JobState.EXPIRED
