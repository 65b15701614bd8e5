import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from queueing.job import WEBHOOK_QUEUE, JobState
from tests.support.cpu_worker import cpu_worker
from tests.support.deliveries import DeliveryBench
from tests.support.receiver import (
    answers,
    answers_in_turn,
    drips_body,
    drips_headers,
    floods_body,
    floods_headers,
    hangs,
    receiver,
    resets,
    sends_a_gzip_bomb,
    speaks_no_http,
)

REPOSITORY = Path(__file__).resolve().parents[2]
SLOTS = 64
SCHEDULE_S = (0, 5, 300)
BAD_BEHAVIOURS = {
    "500": answers(500),
    "404": answers(404),
    "429": answers(429, retry_after="9"),
    "3xx": answers(302, location="http://169.254.169.254/"),
    "hang": hangs,
    "drip": drips_headers,
    "headers": floods_headers,
    "reset": resets,
    "protocol": speaks_no_http,
}
GOOD_BEHAVIOURS = {"drip": drips_body, "flood": floods_body, "bomb": sends_a_gzip_bomb}
THEN_WELL = [
    pytest.param(answers_in_turn(behaviour, answers(200)), id=name)
    for name, behaviour in BAD_BEHAVIOURS.items()
]


@pytest.mark.fault("F25")
@pytest.mark.parametrize("behaviour", THEN_WELL)
def test_an_event_outlives_every_failure_of_its_receiver(redis_url, behaviour):
    with receiver(behaviour) as server:
        bench = DeliveryBench(redis_url, [server.port], timeout_s=0.5, schedule_s=SCHEDULE_S)
        event_id = bench.end_a_job(server.url())

        bench.deliver_due()
        after_the_failure = bench.state(event_id)
        bench.clock.advance(ms=10_000)
        bench.deliver_due()

        first, second = server.take(2)
    assert after_the_failure is JobState.QUEUED
    assert bench.state(event_id) is JobState.COMPLETED
    assert bench.verified_id(first) == bench.verified_id(second) == event_id
    assert timestamp_s(second) - timestamp_s(first) == 10


@pytest.mark.fault("F25")
@pytest.mark.parametrize("behaviour", GOOD_BEHAVIOURS.values(), ids=GOOD_BEHAVIOURS)
def test_a_hostile_body_after_success_changes_nothing(redis_url, behaviour):
    with receiver(behaviour) as server:
        bench = DeliveryBench(redis_url, [server.port], timeout_s=0.5)
        event_id = bench.end_a_job(server.url())

        bench.deliver_due()

    assert bench.state(event_id) is JobState.COMPLETED


@pytest.mark.fault("F25")
def test_retry_after_is_kept_to_the_second(redis_url):
    with receiver(answers_in_turn(answers(429, retry_after="30"), answers(200))) as server:
        bench = DeliveryBench(redis_url, [server.port])
        bench.end_a_job(server.url())

        bench.deliver_due()
        bench.clock.advance(ms=29_999)
        too_early = bench.deliver_due()
        bench.clock.advance(ms=1)
        in_time = bench.deliver_due()

    assert (too_early, in_time) == (0, 1)


@pytest.mark.fault("F25")
def test_fifty_hanging_receivers_do_not_hold_up_a_good_one(redis_url):
    with contextlib.ExitStack() as stack:
        hanging = [stack.enter_context(receiver(hangs)) for _ in range(50)]
        good = stack.enter_context(receiver())
        bench = DeliveryBench(
            redis_url,
            [server.port for server in [*hanging, good]],
            timeout_s=15.0,
            slots=SLOTS,
        )
        work = bench.deliverer.deliver
        stack.enter_context(cpu_worker(redis_url, bench.queue, WEBHOOK_QUEUE, work, slots=SLOTS))
        for number, server in enumerate(hanging):
            bench.end_a_job(server.url(), name=f"hanging{number}")
        for server in hanging:
            server.take(1)

        queued_at = {}
        for number in range(100):
            event_id = bench.end_a_job(good.url(), name=f"good{number}")
            queued_at[event_id] = time.monotonic()
        arrived = good.take(100)

        for server in hanging:
            server.stopped.set()
    delays = sorted(r.at - queued_at[r.headers["webhook-id"]] for r in arrived)
    assert delays[98] < 2.0


@pytest.mark.fault("F25")
def test_a_small_worker_serves_those_it_knows_to_answer_while_fifty_new_ones_hang(redis_url):
    with contextlib.ExitStack() as stack:
        hanging = [stack.enter_context(receiver(hangs)) for _ in range(50)]
        good = stack.enter_context(receiver())
        ports = [server.port for server in [*hanging, good]]
        bench = DeliveryBench(redis_url, ports, timeout_s=15.0, slots=8)
        bench.end_a_job(good.url(), name="before")
        bench.deliver_due()
        good.take(1)
        work = bench.deliverer.deliver
        stack.enter_context(cpu_worker(redis_url, bench.queue, WEBHOOK_QUEUE, work, slots=8))
        for number, server in enumerate(hanging):
            bench.end_a_job(server.url(), name=f"hanging{number}")

        queued_at = time.monotonic()
        for number in range(20):
            bench.end_a_job(good.url(), name=f"good{number}")
        arrived = good.take(20)

        for server in hanging:
            server.stopped.set()
    assert arrived[-1].at - queued_at < 2.0


@pytest.mark.fault("F25")
def test_one_hanging_receiver_with_many_events_leaves_most_places_free(redis_url):
    with receiver(hangs) as hanging, receiver() as good:
        bench = DeliveryBench(redis_url, [hanging.port, good.port], timeout_s=15.0, slots=8)
        for number in range(50):
            bench.end_a_job(hanging.url(), name=f"hanging{number}")
        work = bench.deliverer.deliver
        with cpu_worker(redis_url, bench.queue, WEBHOOK_QUEUE, work, slots=8):
            hanging.take(2)

            queued_at = time.monotonic()
            bench.end_a_job(good.url(), name="good")
            (arrived,) = good.take(1)

            num_more_places_taken = hanging.arrivals.qsize()
            hanging.stopped.set()
    assert arrived.at - queued_at < 2.0
    assert num_more_places_taken == 0


@pytest.mark.fault("F26")
def test_an_event_whose_worker_died_between_post_and_mark_comes_again(redis_url):
    workers: list[subprocess.Popen[bytes]] = []
    seen: list[str] = []

    def kill_at_first_sight(exchange):
        event_id = exchange.received.headers["webhook-id"]
        seen.append(event_id)
        if seen.count(event_id) == 1:
            workers[-1].kill()
        else:
            exchange.say(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with receiver(kill_at_first_sight) as server:
        bench = DeliveryBench(redis_url, [server.port])
        events = {bench.end_a_job(server.url(), name=str(number)) for number in range(3)}

        for _ in events:
            workers.append(delivery_process(redis_url, server.port))
            workers[-1].wait(timeout=20)
        last = delivery_process(redis_url, server.port)
        server.take(6)
        last.terminate()
        last.wait(timeout=20)

    assert {event: seen.count(event) for event in events} == dict.fromkeys(events, 2)
    assert {bench.state(event) for event in events} == {JobState.COMPLETED}


def delivery_process(redis_url: str, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.delivery_process", redis_url, str(port)],
        cwd=REPOSITORY,
    )


def timestamp_s(received) -> int:
    return int(received.headers["webhook-timestamp"])
