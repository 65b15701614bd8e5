"""Real processes, kept and stopped: shells, because Python is slow to start and these are many."""

import os
import queue
import signal
import subprocess
import sys
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

import psutil
import pytest

from ops.supervisor import Child, RestartPause, Supervisor
from tests.support.waiting import wait_until

FOREVER = "echo up; exec sleep 1000"
MORTAL = "echo lived; exit 3"
SUPERVISED = "TEST_SUPERVISED"
WAITING = "while :; do sleep 0.02; done"
STUBBORN = f"trap 'echo asked' TERM; echo up; {WAITING}"

# A supervisor in a process of its own, which prints its child's id.
ALONE = """
import sys, threading
from pathlib import Path
from ops.supervisor import Child, Supervisor
with Supervisor(Path(sys.argv[1]), lambda *_: None) as supervisor:
    supervisor.start(Child("one", ["sh", "-c", sys.argv[2]], {}))
    print(supervisor.pid("one"), flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def deaths():
    return queue.SimpleQueue()


@pytest.fixture
def supervisor(tmp_path, deaths):
    with Supervisor(tmp_path, lambda *death: deaths.put(death)) as running:
        yield running
    assert children() == []


@pytest.fixture
def run_alone(tmp_path):
    """Return a way to run a supervisor of one child as a process; it is gone after the test."""
    started = []

    def run(script):
        process = subprocess.Popen(
            [sys.executable, "-c", ALONE, str(tmp_path), script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None, "it is a pipe"
        child = psutil.Process(int(process.stdout.readline()))
        wait_until(lambda: "up" in (tmp_path / "one.log").read_text())
        return process, child

    yield run
    for process in started:
        process.kill()
        process.communicate()


def a_child(name: str, script: str, grace_s: float = 10.0, **environment: str) -> Child:
    return Child(name, ["sh", "-c", script], {SUPERVISED: name, **environment}, grace_s)


def children() -> list[psutil.Process]:
    """Return the supervised processes that live: servers that other tests keep are not ours."""
    return [child for child in psutil.Process().children(recursive=True) if is_supervised(child)]


def is_supervised(process: psutil.Process) -> bool:
    try:
        return SUPERVISED in process.environ()
    except psutil.NoSuchProcess:  # it ended since, or is a zombie
        return False


def fail_half_way(folder: Path) -> None:
    with Supervisor(folder, lambda *_: None) as supervisor:
        supervisor.start(a_child("one", FOREVER))
        supervisor.start(a_child("two", FOREVER))
        raise RuntimeError("half way")


def wait_for_log(supervisor: Supervisor, name: str, text: str) -> None:
    log = supervisor.log(name)
    wait_until(lambda: log.exists() and text in log.read_text(), describe=lambda: name)


def test_a_child_that_dies_is_told_of_and_started_again_at_once(supervisor, deaths):
    supervisor.start(a_child("one", FOREVER))
    wait_for_log(supervisor, "one", "up")
    first = supervisor.pid("one")

    os.kill(first, signal.SIGKILL)
    death = deaths.get(timeout=5)
    wait_for_log(supervisor, "one", "up\nup")

    assert death == ("one", -signal.SIGKILL)
    assert supervisor.pid("one") != first
    assert supervisor.deaths("one") == [-signal.SIGKILL]


def test_a_child_that_cannot_live_leaves_its_neighbour_alone(supervisor, deaths):
    supervisor.start(a_child("steady", FOREVER))
    steady = supervisor.pid("steady")

    supervisor.start(a_child("mortal", MORTAL))
    told = [deaths.get(timeout=5) for _ in range(2)]

    assert told == [("mortal", 3)] * 2
    assert supervisor.pid("steady") == steady
    assert supervisor.deaths("steady") == []


def test_pauses_grow_while_a_child_dies_young_and_begin_anew_after_a_long_life():
    pause = RestartPause()

    young = [pause.after(lived_s=1.0) for _ in range(6)]
    old = pause.after(lived_s=3_600.0)

    assert young == [0.0, 1.0, 3.0, 7.0, 10.0, 10.0]
    assert old == 0.0


def test_a_child_gets_its_environment_beside_ours(supervisor, monkeypatch):
    monkeypatch.setenv("OURS", "given")

    supervisor.start(a_child("one", f'echo "$OURS $ITS"; {FOREVER}', ITS="own"))

    wait_for_log(supervisor, "one", "given own")


def test_children_stop_one_after_the_other_the_last_started_first(tmp_path, deaths):
    order = tmp_path / "order"
    with Supervisor(tmp_path, lambda *death: deaths.put(death)) as supervisor:
        for name in ("store", "api", "worker"):
            # Slow to end, so that one that was told too early would show.
            last_words = f"echo {name} told >> {order}; sleep 0.1; echo {name} ended >> {order}"
            supervisor.start(a_child(name, f"trap '{last_words}; exit 0' TERM; echo up; {WAITING}"))
            wait_for_log(supervisor, name, "up")

    assert order.read_text().splitlines() == [
        f"{name} {what}" for name in ("worker", "api", "store") for what in ("told", "ended")
    ]
    assert deaths.empty()


def test_a_stubborn_child_is_killed_after_its_grace_with_what_it_started(tmp_path):
    with Supervisor(tmp_path, lambda *_: None) as supervisor:
        supervisor.start(a_child("one", f"({STUBBORN}) & {STUBBORN}", grace_s=0.2))
        wait_for_log(supervisor, "one", "up\nup")
        family = children()

    assert len(family) >= 2
    assert psutil.wait_procs(family, timeout=5)[1] == []


def test_an_exception_in_the_block_leaves_no_child(tmp_path):
    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way(tmp_path)

    assert children() == []


def test_a_child_that_cannot_be_started_at_all_is_an_error_and_the_others_end(tmp_path):
    (tmp_path / "two.log").mkdir()

    with pytest.raises(IsADirectoryError):
        fail_half_way(tmp_path)

    assert children() == []


def test_children_end_with_a_supervisor_that_is_killed(run_alone):
    process, child = run_alone(FOREVER)

    process.kill()

    wait_until(lambda: not child.is_running(), limit_s=5)


def test_ctrl_c_reaches_the_supervisor_alone_and_it_ends_the_children(run_alone, tmp_path):
    process, child = run_alone(f"trap 'echo interrupted' INT; {FOREVER}")

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=10)

    assert not child.is_running()
    assert "interrupted" not in (tmp_path / "one.log").read_text()


def test_a_second_ctrl_c_kills_what_the_first_could_not_end(run_alone, tmp_path):
    process, child = run_alone(STUBBORN)

    process.send_signal(signal.SIGINT)
    wait_until(lambda: "asked" in (tmp_path / "one.log").read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)  # half of the grace

    assert not child.is_running()


def test_a_lock_shared_with_the_children_is_free_when_all_have_ended(tmp_path):
    lock = tmp_path / "lock"
    with lock.open("w") as ours:
        flock(ours, LOCK_EX | LOCK_NB)
        supervisor = Supervisor(tmp_path, lambda *_: None, [ours.fileno()]).__enter__()
        supervisor.start(a_child("one", FOREVER))
        wait_for_log(supervisor, "one", "up")

    with lock.open() as another:
        with pytest.raises(BlockingIOError):
            flock(another, LOCK_EX | LOCK_NB)
        supervisor.stop()
        flock(another, LOCK_EX | LOCK_NB)
