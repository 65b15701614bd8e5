from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic

import pytest

from tests.api.test_jobs import complete_one

LONG_S = 5


@pytest.fixture
def submit(client):
    return lambda: client.post("/v1/jobs", json={"prompt": "hi"}).headers["Location"]


@pytest.fixture
def executor():
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def ask(api, client, executor):
    """Return a function that asks for a job in another thread, once its request waits."""
    waiting = Event()
    enter = api.waiters.waiting_for

    def announced(job_id):
        waiting.set()
        return enter(job_id)

    api.waiters.waiting_for = announced

    def begin(path):
        waiting.clear()

        def get():
            other = api.app.test_client()
            other.environ_base.update(client.environ_base)
            return other.get(f"{path}?wait={LONG_S}")

        answer = executor.submit(get)
        assert waiting.wait(LONG_S)
        return answer

    return begin


def test_a_waiter_is_answered_when_its_job_ends(submit, ask, queue):
    path = submit()
    answer = ask(path)
    begun_s = monotonic()

    complete_one(queue)

    assert answer.result().json["state"] == "completed"
    assert monotonic() - begun_s < LONG_S / 2


def test_a_waiter_is_answered_when_its_job_is_cancelled(submit, ask, client):
    path = submit()
    answer = ask(path)

    client.post(f"{path}/cancel")

    assert answer.result().json["state"] == "cancelled"


def test_waiting_for_a_job_that_has_ended_takes_no_time(submit, client, queue):
    path = submit()
    complete_one(queue)
    begun_s = monotonic()

    job = client.get(f"{path}?wait={LONG_S}").json

    assert job["state"] == "completed"
    assert monotonic() - begun_s < 1


def test_when_the_time_is_out_the_answer_is_the_current_state(submit, client, queue):
    path = submit()
    queue.claim("generate.tiny", "worker", 1)
    begun_s = monotonic()

    answer = client.get(f"{path}?wait=0.2")

    assert answer.status_code == 200
    assert answer.json["state"] == "running"
    assert monotonic() - begun_s >= 0.2


def test_beyond_the_cap_a_waiter_is_answered_at_once(submit, ask, client, api):
    held = [ask(submit()), ask(submit())]
    begun_s = monotonic()

    answer = client.get(f"{submit()}?wait={LONG_S}")

    assert answer.json["state"] == "queued"
    assert monotonic() - begun_s < 1
    assert not any(one.done() for one in held)
    api.begin_draining()


def test_a_waiter_that_left_makes_room_for_another(submit, ask, client, queue):
    held = [ask(submit()), ask(submit())]
    complete_one(queue)
    complete_one(queue)
    for one in held:
        one.result()
    begun_s = monotonic()

    client.get(f"{submit()}?wait=0.3")

    assert monotonic() - begun_s >= 0.3


def test_waiters_are_answered_when_the_server_drains(submit, ask, api):
    answer = ask(submit())
    begun_s = monotonic()

    api.begin_draining()

    assert answer.result().json["state"] == "queued"
    assert monotonic() - begun_s < LONG_S / 2


def test_waiting_does_not_ask_the_store(submit, ask, api, queue):
    def num_looks():
        return api.client.info("commandstats")["cmdstat_hgetall"]["calls"]

    answer = ask(submit())
    before = num_looks()
    submit()

    complete_one(queue)

    # One look when the listener begins, one when the job has ended, and none in between.
    assert answer.result().json["state"] == "completed"
    assert num_looks() - before <= 3


def test_an_erased_job_answers_its_waiter_with_404(submit, ask, client):
    path = submit()
    answer = ask(path)

    client.delete(path)

    assert answer.result().status_code == 404


def test_waiting_outlasts_a_restart_of_the_store(submit, ask, redis_server, queue):
    path = submit()
    answer = ask(path)
    redis_server.restart()

    complete_one(queue)

    assert answer.result().json["state"] == "completed"
