"""Where a request ends, however it comes in pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.partial_request import PartialRequest

MAX_BYTES = 100
WITH_LENGTH = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: 5\r\n\r\nhello"
WITHOUT_BODY = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = (
    b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
)
WITH_TRAILER = CHUNKED.removesuffix(b"\r\n") + b"X-Sum: 1\r\n\r\n"
EMPTY_CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "data", [WITH_LENGTH, WITHOUT_BODY, CHUNKED, WITH_TRAILER, EMPTY_CHUNKED], ids=repr
)
@given(cuts=st.lists(st.integers(1, 200), max_size=8))
def test_a_request_is_whole_with_its_last_byte_and_not_before(data, cuts):
    request = PartialRequest(MAX_BYTES)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    answers = []
    for start, end in pairwise(places):
        request.add(data[start:end])
        answers.append(request.is_whole)

    assert answers == [False] * (len(answers) - 1) + [True]
    assert bytes(request.data) == data


def test_what_is_larger_than_may_be_gathered_is_handed_over_at_once():
    request = PartialRequest(MAX_BYTES)

    request.add(b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n")

    assert request.is_whole


def test_chunks_beyond_what_may_be_gathered_are_handed_over():
    request = PartialRequest(MAX_BYTES)
    request.add(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    before = request.is_whole

    request.add(b"ff\r\n" + b"x" * 120)

    assert (before, request.is_whole) == (False, True)


def test_a_head_without_end_is_handed_over_to_be_refused():
    request = PartialRequest(MAX_BYTES)
    request.add(b"GET / HTTP/1.1\r\nX: ")

    request.add(b"x" * 70_000)

    assert request.is_whole


def test_whoever_waits_for_leave_to_send_is_told_once():
    request = PartialRequest(MAX_BYTES)

    request.add(b"POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
    asked = (request.expects_continue, request.is_whole)
    request.add(b"{}")

    assert asked == (True, False)
    assert request.is_whole
    assert bytes(request.data) == b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    "head", [b"\x00\xff\r\n\r\n", b"\r\n\r\n", b"GET\r\nContent-Length: x\r\n\r\n"]
)
def test_what_is_no_http_is_handed_over_to_be_refused(head):
    request = PartialRequest(MAX_BYTES)

    request.add(head)

    assert request.is_whole
