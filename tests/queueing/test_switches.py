import pytest

from queueing.errors import QueueShed
from queueing.job import Priority
from queueing.store import connect
from queueing.switches import Flip, Switch, SwitchBoard, SwitchWatch
from tests.support.jobs import a_job
from tests.support.server import RedisServer, embedded_binary


@pytest.fixture
def board(client):
    return SwitchBoard(client)


def test_all_switches_are_off_at_first(board):
    assert board.read() == {}


def test_a_flip_tells_what_was_before(board):
    board.flip(Switch.MAX_TOKENS, 128)

    assert board.flip(Switch.MAX_TOKENS, 64) == Flip(Switch.MAX_TOKENS, 128, 64)
    assert board.read() == {Switch.MAX_TOKENS: 64}


def test_a_switch_can_be_turned_off_again(board):
    board.flip(Switch.SHED_BULK, 1)

    board.flip(Switch.SHED_BULK, None)

    assert board.read() == {}


@pytest.mark.parametrize(
    ("switch", "priority"),
    [(Switch.SHED_BULK, Priority.BULK), (Switch.SHED_STANDARD, Priority.STANDARD)],
)
def test_work_of_a_shed_priority_is_refused_at_once(board, queue, switch, priority):
    board.flip(switch, 1)

    with pytest.raises(QueueShed):
        queue.enqueue(a_job(priority=priority))

    assert queue.enqueue(a_job(priority=Priority.REALTIME)).created


def test_work_is_taken_again_when_the_switch_is_off(board, queue):
    board.flip(Switch.SHED_BULK, 1)

    board.flip(Switch.SHED_BULK, None)

    assert queue.enqueue(a_job(priority=Priority.BULK)).created


def test_a_watch_tells_each_change_once(board):
    flips: list[Flip] = []
    board.flip(Switch.MAX_TOKENS, 128)
    watch = SwitchWatch(board, flips.append)

    watch.look_when_due()
    watch.look_when_due()

    assert flips == [Flip(Switch.MAX_TOKENS, None, 128)]
    assert watch.value(Switch.MAX_TOKENS) == 128


def test_a_switch_of_a_newer_release_is_passed_over(board, client):
    client.hset("{pm}:switches", "think_harder", "1")

    assert board.read() == {}


def test_without_a_store_a_process_goes_by_what_it_knew_last(tmp_path):
    server = RedisServer(tmp_path / "redis", embedded_binary())
    server.start()
    with connect(server.url) as client:
        board = SwitchBoard(client)
        board.flip(Switch.MAX_TOKENS, 128)
        watch = SwitchWatch(board, lambda _flip: None)
        watch.look_when_due()
        server.kill9()

        watch.look_when_due()

        assert watch.value(Switch.MAX_TOKENS) == 128
