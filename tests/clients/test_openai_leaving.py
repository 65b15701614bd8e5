"""Callers who leave, places that are taken, workers that die: what the unmodified client sees."""

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from queueing.job import JobState
from tests.support.fake_engine import as_prompt, expected_text
from tests.support.jobs import MODEL, QUEUE
from tests.support.live_stack import API_KEY, LiveStack
from tests.support.load import amount

HELLO = {"role": "user", "content": "hello"}
LONG = {"model": MODEL, "messages": [HELLO], "max_tokens": 3000, "temperature": 0}
PLACES = 3


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """Run an installation whose API and workers may be ended."""
    folder = tmp_path_factory.mktemp("leaving")
    stack = LiveStack(folder, step_ms=10, api_threads=8, api_max_waiters=PLACES)
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture
def live(installation):
    """Return the installation at rest, as it was at first."""
    if not any(worker.is_running for worker in installation.cluster.workers):
        installation.cluster.start_worker(step_ms=10)
    if not installation.api.is_running:
        installation.api.start()
    yield installation
    is_running(installation, 0)


@pytest.fixture
def since(live):
    """Return a way to count what happened to jobs since the test began."""
    before = live.cluster.queue.totals(QUEUE)
    return lambda name: live.cluster.queue.totals(QUEUE).get(name, 0) - before.get(name, 0)


@pytest.fixture
def send(live):
    """Return a way to send a request by hand, and the connection it went over."""
    connections: list[socket.socket] = []

    def send(path, fields):
        body = json.dumps(fields).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {API_KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection = socket.create_connection(("127.0.0.1", live.api.port))
        connections.append(connection)
        connection.sendall(head.encode() + body)
        return connection

    yield send
    for connection in connections:
        connection.close()


@pytest.fixture
def ask(send):
    """Return a way to ask for a long chat by hand."""
    return lambda **changes: send("/v1/chat/completions", {**LONG, **changes})


def end_workers(live):
    for worker in live.cluster.workers:
        worker.kill9()


def is_running(live, number):
    live.cluster.wait_until(lambda: live.cluster.num_running() == number)


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_leaves_cancels_his_job(live, ask, since, stream):
    connection = ask(stream=stream)
    is_running(live, 1)

    connection.close()

    live.cluster.wait_until(lambda: since(JobState.CANCELLED) == 1, limit_s=2)
    is_running(live, 0)


def test_a_caller_who_leaves_cancels_all_inputs_that_are_not_embedded(live, send, since):
    num_inputs = 200
    texts = ["x" * 4_000] * num_inputs

    connection = send("/v1/embeddings", {"model": MODEL, "input": texts})
    live.cluster.wait_until(lambda: since("claimed") > 0)
    connection.close()

    live.cluster.wait_until(
        lambda: since(JobState.CANCELLED) + since(JobState.COMPLETED) == num_inputs, limit_s=5
    )
    assert since(JobState.CANCELLED) > num_inputs / 2
    is_running(live, 0)


def test_many_callers_who_leave_anywhere_leave_no_block_behind(live, ask, since):
    rng = random.Random(17)
    num_callers = amount(quick=24, soak=500)

    for number in range(num_callers):
        live.cluster.wait_until(lambda: live.cluster.num_running() < PLACES)
        connection = ask(stream=True, messages=[{"role": "user", "content": f"no. {number}"}])
        live.cluster.wait_until(lambda: since("claimed") > number)  # noqa: B023  it is called here
        connection.settimeout(10)
        for _ in range(rng.randrange(1, 12)):
            connection.recv(rng.randrange(1, 200))
        connection.close()
    live.cluster.wait_until(lambda: since(JobState.CANCELLED) == num_callers)

    (worker,) = (worker for worker in live.cluster.workers if worker.is_running)
    assert live.cluster.drain(worker) == 0


def test_a_caller_who_left_before_his_job_began_costs_no_step(live, ask, since):
    end_workers(live)
    connection = ask()
    live.cluster.wait_until(lambda: since("submitted") == 1)

    connection.close()

    live.cluster.wait_until(lambda: since(JobState.CANCELLED) == 1, limit_s=2)
    assert since("claimed") == 0


def test_whoever_has_an_idempotency_key_may_come_back(live, since):
    key = {"Idempotency-Key": "mine"}
    asked = {**LONG, "max_tokens": 400, "extra_headers": key}
    with live.client(timeout=0.2, max_retries=0) as hasty, pytest.raises(openai.APITimeoutError):
        hasty.chat.completions.create(**asked)

    with live.client(timeout=20) as patient:
        answer = patient.chat.completions.create(**asked)

    assert answer.choices[0].message.content == expected_text(as_prompt(HELLO), 400)
    assert since("submitted") == 1


def test_a_caller_beyond_the_places_is_turned_away_before_a_job_is_made(live, ask, since):
    for _ in range(PLACES):
        ask()
    is_running(live, PLACES)

    with live.client(max_retries=0) as client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**LONG)

    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.code == "overloaded"
    assert since("submitted") == PLACES


def test_while_all_places_are_taken_background_work_is_still_accepted(live, ask):
    for _ in range(PLACES):
        ask()
    is_running(live, PLACES)

    with live.client(max_retries=0, timeout=5) as client:
        made = client.responses.create(
            model=MODEL, input="hello", background=True, max_output_tokens=1
        )

    assert made.status in ("queued", "in_progress")


def test_the_client_asks_again_until_there_is_a_place(live, ask):
    held = [ask() for _ in range(PLACES)]
    is_running(live, PLACES)
    with live.client(timeout=20, max_retries=5) as client, ThreadPoolExecutor(1) as executor:
        answer = executor.submit(client.chat.completions.create, **{**LONG, "max_tokens": 5})

        for connection in held:
            connection.close()

        assert answer.result().choices[0].message.content == expected_text(as_prompt(HELLO), 5)


def test_a_stream_goes_on_after_its_worker_died(live):
    with live.client(timeout=30) as client:
        stream = client.chat.completions.create(**{**LONG, "max_tokens": 120, "stream": True})
        said = [next(stream).choices[0].delta.content for _ in range(20)]

        end_workers(live)
        live.cluster.start_worker(step_ms=1)
        said += [chunk.choices[0].delta.content or "" for chunk in stream]

    assert "".join(said) == expected_text(as_prompt(HELLO), 120)


def test_a_streamed_draw_without_a_seed_goes_on_after_its_worker_died(live):
    with live.client(timeout=30) as client:
        asked = {**LONG, "max_tokens": 120, "stream": True, "temperature": 1}
        stream = client.chat.completions.create(**asked)
        said = [next(stream).choices[0].delta.content for _ in range(20)]

        end_workers(live)
        live.cluster.start_worker(step_ms=1)
        said += [chunk.choices[0].delta.content or "" for chunk in stream]

    assert len("".join(said)) == 120


def test_a_server_that_drains_tells_those_who_wait(live):
    with live.client(timeout=20, max_retries=0) as client, ThreadPoolExecutor(1) as executor:
        answer = executor.submit(client.chat.completions.create, **LONG)
        is_running(live, 1)

        live.api.terminate()

        with pytest.raises(openai.InternalServerError) as caught:
            answer.result()
    assert caught.value.status_code == 503
    assert caught.value.code == "draining"
    assert live.api.wait() == 0


def test_a_stream_that_a_drain_cuts_says_so(live):
    with live.client(timeout=20) as client:
        stream = client.chat.completions.create(**LONG, stream=True)
        next(stream)

        live.api.terminate()

        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
    assert live.api.wait() == 0
