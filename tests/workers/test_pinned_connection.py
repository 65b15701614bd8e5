import pytest

from tests.support.receiver import floods_body, hangs, receiver
from workers.pinned_connection import Deadline, PinnedBackend

REQUEST = b"POST / HTTP/1.1\r\n\r\n"


def test_no_more_than_the_allowed_bytes_are_read_from_an_endless_answer():
    with receiver(floods_body) as server:
        backend = PinnedBackend(["127.0.0.1"], Deadline(10), max_bytes=100_000)
        stream = backend.connect_tcp("receiver.example", server.port)
        stream.write(REQUEST)

        read = b"".join(iter(lambda: stream.read(65_536), b""))

        stream.close()
    assert len(read) == 100_000


def test_every_call_gets_only_what_is_left_of_the_time():
    with receiver(hangs) as server:
        backend = PinnedBackend(["127.0.0.1"], Deadline(0.1), max_bytes=1_000)
        stream = backend.connect_tcp("receiver.example", server.port, timeout=60)
        stream.write(REQUEST, timeout=60)

        with pytest.raises(TimeoutError):
            stream.read(1_000, timeout=60)
        with pytest.raises(TimeoutError):
            stream.write(REQUEST, timeout=60)

        stream.close()


def test_a_deadline_can_be_brought_forward_but_not_put_off():
    deadline = Deadline(10)

    deadline.shorten(5)
    deadline.shorten(60)

    assert deadline.remaining_s() <= 5
