import socket

import pytest

from api.caller import Caller, CallerLeft


@pytest.fixture
def ends():
    """Return both ends of a connection: the server's, then the caller's."""
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_caller_who_waits_is_there(ends):
    ours, _ = ends

    Caller(ours).check_presence()


def test_a_caller_who_closed_has_left(ends):
    ours, theirs = ends
    theirs.close()

    with pytest.raises(CallerLeft):
        Caller(ours).check_presence()


def test_a_caller_who_sent_the_next_request_is_there_and_nothing_of_it_is_lost(ends):
    ours, theirs = ends
    theirs.sendall(b"GET /")

    Caller(ours).check_presence()

    assert ours.recv(16) == b"GET /"


def test_a_caller_who_stops_reading_is_given_up(ends):
    ours, _ = ends

    Caller(ours).bound_writes(0.05)

    with pytest.raises(TimeoutError):
        ours.sendall(b"x" * 10_000_000)


def test_without_a_connection_nobody_is_seen_to_leave():
    caller = Caller.of({})

    caller.bound_writes(1)
    caller.check_presence()
