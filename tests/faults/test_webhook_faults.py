import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from queueing.job import WEBHOOK_QUEUE, JobState
from tests.support.cpu_worker import cpu_worker
from tests.support.deliveries import DeliveryBench
from tests.support.load import amount
from tests.support.receiver import (
    Behaviour,
    Exchange,
    Received,
    Receiver,
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
from tests.support.waiting import wait_until

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


@pytest.mark.fault("F25")
@pytest.mark.parametrize("behaviour", BAD_BEHAVIOURS.values(), ids=BAD_BEHAVIOURS)
def test_an_event_outlives_every_failure_of_its_receiver(redis_url, behaviour):
    with receiver(answers_in_turn(behaviour, answers(200))) as server:
        bench = DeliveryBench(redis_url, [server.port], timeout_s=1.5, schedule_s=SCHEDULE_S)
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
        bench = DeliveryBench(redis_url, [server.port], timeout_s=1.5)
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
def test_fifty_hanging_receivers_do_not_hold_up_a_good_one(redis_url, record_property):
    num_events = amount(quick=100, soak=200)
    with receivers(hangs, 50) as hanging, receiver() as good:
        bench = DeliveryBench(redis_url, ports(*hanging, good), timeout_s=15.0, slots=SLOTS)
        with delivering(redis_url, bench, SLOTS, until_ended=hanging):
            end_a_job_for_each(bench, hanging)
            wait_for_each(hanging)

            queued_at = end_jobs(bench, good, num_events)
            arrived = good.take(num_events)

    delays = sorted(one.at - queued_at[one.headers["webhook-id"]] for one in arrived)
    p99_s = delays[num_events * 99 // 100 - 1]
    record_property("good_p99_s", round(p99_s, 3))
    assert p99_s < 2.0


@pytest.mark.fault("F25")
def test_a_small_worker_serves_those_it_knows_to_answer_while_fifty_new_ones_hang(redis_url):
    with receivers(hangs, 50) as hanging, receiver() as good:
        bench = DeliveryBench(redis_url, ports(*hanging, good), timeout_s=15.0, slots=8)
        bench.end_a_job(good.url(), name="before")
        bench.deliver_due()
        good.take(1)
        with delivering(redis_url, bench, 8, until_ended=hanging):
            end_a_job_for_each(bench, hanging)

            queued_at = end_jobs(bench, good, 20)
            arrived = good.take(20)

    assert arrived[-1].at - min(queued_at.values()) < 2.0


@pytest.mark.fault("F25")
def test_one_hanging_receiver_with_many_events_leaves_most_places_free(redis_url):
    with receiver(hangs) as hanging, receiver() as good:
        bench = DeliveryBench(redis_url, ports(hanging, good), timeout_s=15.0, slots=8)
        end_jobs(bench, hanging, 50)
        with delivering(redis_url, bench, 8, until_ended=[hanging]):
            hanging.take(2)

            queued_at = end_jobs(bench, good, 1)
            (arrived,) = good.take(1)

            num_more_places_taken = hanging.arrivals.qsize()
    assert arrived.at - min(queued_at.values()) < 2.0
    assert num_more_places_taken == 0


@pytest.mark.fault("F26")
@pytest.mark.timeout(amount(quick=60, soak=600))
def test_an_event_whose_worker_died_between_post_and_mark_comes_again(redis_url):
    slots, num_deaths = amount(quick=3, soak=8), amount(quick=2, soak=25)
    killer = KillsAtFirstSight(slots)
    with receiver(killer) as server:
        bench = DeliveryBench(redis_url, [server.port])
        events = [*end_jobs(bench, server, slots * num_deaths)]

        # Every worker but the last dies with all its slots between POST and mark.
        for _ in range(num_deaths):
            killer.await_death_of(delivery_process(redis_url, server.port, slots))
        last = delivery_process(redis_url, server.port, slots)
        wait_until(lambda: bench.num_completed() == len(events))
        last.terminate()
        last.wait(timeout=20)

    told = Counter(killer.seen)
    assert sorted(told) == sorted(events)
    assert set(told.values()) == {2}


class KillsAtFirstSight:
    """A receiver that kills a worker once all its slots hold events that were never seen before,
    and takes an event when it is brought again.
    """

    def __init__(self, slots: int) -> None:
        self.seen: list[str] = []
        self._slots = slots
        self._lock = threading.Lock()
        self._num_held = 0
        self._victims: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def __call__(self, exchange: Exchange) -> None:
        event_id = exchange.received.headers["webhook-id"]
        with self._lock:
            is_new = event_id not in self.seen
            self.seen.append(event_id)
            self._num_held += is_new
            is_full = is_new and self._num_held % self._slots == 0
        if not is_new:
            exchange.say(b"HTTP/1.1 204 x\r\n\r\n")
            return
        if is_full:
            self._victims.get().kill()
        exchange.connection.recv(1)  # it ends with the worker

    def await_death_of(self, worker: "subprocess.Popen[bytes]") -> None:
        self._victims.put(worker)
        assert worker.wait(timeout=30) == -signal.SIGKILL


def delivery_process(redis_url: str, port: int, slots: int) -> "subprocess.Popen[bytes]":
    arguments = [redis_url, str(port), str(slots)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.delivery_process", *arguments], cwd=REPOSITORY
    )


@contextmanager
def receivers(behaviour: Behaviour, count: int) -> Iterator[list[Receiver]]:
    with ExitStack() as stack:
        yield [stack.enter_context(receiver(behaviour)) for _ in range(count)]


@contextmanager
def delivering(
    redis_url: str, bench: DeliveryBench, slots: int, *, until_ended: list[Receiver]
) -> Iterator[None]:
    """Deliver as a worker does, in real time; at the end let those who hang end, so that its
    threads can.
    """
    deliver = bench.deliverer.deliver
    bench.clock.run()
    with cpu_worker(redis_url, bench.queue, WEBHOOK_QUEUE, deliver, slots=slots):
        yield
        for server in until_ended:
            server.stopped.set()


def end_a_job_for_each(bench: DeliveryBench, servers: list[Receiver]) -> None:
    for server in servers:
        bench.end_a_job(server.url(), name=f"port{server.port}")


def wait_for_each(servers: list[Receiver]) -> None:
    for server in servers:
        server.take(1)


def end_jobs(bench: DeliveryBench, server: Receiver, count: int) -> dict[str, float]:
    """End jobs for one receiver; return when each event was queued."""
    names = [f"port{server.port}n{number}" for number in range(count)]
    return {bench.end_a_job(server.url(), name=name): time.monotonic() for name in names}


def ports(*servers: Receiver) -> list[int]:
    return [server.port for server in servers]


def timestamp_s(received: Received) -> int:
    return int(received.headers["webhook-timestamp"])
