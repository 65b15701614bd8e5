import io
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queueing.batch import Cursor
from queueing.batch_input import Checked, InputReader, InputRules
from tests.support.batch_bench import ENDPOINT, a_line, as_jsonl

GOOD = as_jsonl([a_line("good")])
RULES = InputRules(max_lines=50, max_line_bytes=1_000)


def check(content: bytes, rules: InputRules = RULES) -> Checked:
    return rules.check_file(io.BytesIO(content))


def faults_of(content: bytes) -> list[tuple[str, int | None, str | None]]:
    return [(fault.code, fault.line, fault.param) for fault in check(content).faults]


def test_good_lines_have_no_faults():
    checked = check(as_jsonl(a_line(str(number)) for number in range(50)))

    assert checked == Checked(50, (), has_mark=False)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"NaN",
        b"\xff\xfe\xfd",
        b'{"custom_id": "a", "custom_id": "b"}',
        b'{"custom_id": "\\ud800"}',
        b'{"custom_id": NaN}',
        b'{"custom_id": ' + b"9" * 500 + b"}",
        b"[" * 900,
        b'{"a":' * 150,
        b"\xef\xbb\xbf{}",
    ],
)
def test_a_line_that_is_not_strict_json_is_named(line):
    assert faults_of(GOOD + line + b"\n") == [("invalid_json_line", 2, None)]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"method": "GET"}, "invalid_method", "method"),
        ({"method": "post"}, "invalid_method", "method"),
        ({"url": [ENDPOINT]}, "invalid_url", "url"),
        ({"body": "text"}, "invalid_body", "body"),
        ({"body": None}, "invalid_body", "body"),
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"custom_id": 7}, "invalid_custom_id", "custom_id"),
        ({"custom_id": None}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "x" * 600}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "a\x00b"}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "a\r\nb"}, "invalid_custom_id", "custom_id"),
        ({"priority": "realtime"}, "unknown_parameter", "priority"),
    ],
)
def test_a_field_that_breaks_a_rule_is_named_with_its_line(change, code, param):
    assert faults_of(GOOD + as_jsonl([a_line("a") | change])) == [(code, 2, param)]


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
def test_a_missing_field_is_named(name):
    line = a_line("a")
    del line[name]

    assert faults_of(as_jsonl([line])) == [("missing_required_parameter", 1, name)]


def test_a_repeated_custom_id_is_named_with_both_lines():
    checked = check(as_jsonl([a_line("a"), a_line("b"), a_line("a")]))

    (fault,) = checked.faults
    assert (fault.code, fault.line) == ("duplicate_custom_id", 3)
    assert "line 1" in fault.message


def test_all_faults_up_to_a_hundred_are_listed():
    rules = InputRules(max_lines=1_000)

    faults = check(b"{\n" * 500, rules).faults

    assert [fault.line for fault in faults] == list(range(1, 101))


def test_a_file_with_too_many_lines_is_refused_as_a_whole():
    faults = faults_of(as_jsonl(a_line(str(number)) for number in range(51)))

    assert faults == [("too_many_lines", None, None)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"  \r\n\t\n", b"\xef\xbb\xbf"])
def test_a_file_without_lines_is_refused(content):
    assert faults_of(content) == [("empty_file", None, None)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_named(encoding):
    (fault,) = check(GOOD.decode().encode(encoding)).faults

    assert fault.code == "invalid_encoding"
    assert "UTF-16" in fault.message or "UTF-32" in fault.message


def test_a_byte_order_mark_is_removed_and_noted():
    checked = check(b"\xef\xbb\xbf" + GOOD)

    assert checked == Checked(1, (), has_mark=True)


def test_a_line_that_is_too_long_is_named_and_the_next_one_still_read():
    content = b'{"custom_id": "' + b"x" * 5_000 + b'"}\n{\n' + GOOD

    assert faults_of(content) == [("line_too_long", 1, None), ("invalid_json_line", 2, None)]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_longest_line_allowed_is_read_whatever_its_end(end):
    data = b"x" * 1_000
    (line,) = InputReader(io.BytesIO(data + end), max_line_bytes=1_000)

    assert line.data == data
    assert line.after.offset == len(data + end)
    (longer,) = InputReader(io.BytesIO(b"x" + data + end), max_line_bytes=1_000)
    assert longer.data is None
    assert longer.after.offset == len(data + end) + 1


def test_a_line_without_end_takes_no_memory():
    content = io.BytesIO(b"x" * 50_000_000)
    tracemalloc.start()

    faults = InputRules().check_file(content).faults

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [fault.code for fault in faults] == ["line_too_long"]
    assert peak_bytes < 8_000_000


@given(
    pieces=st.lists(
        st.tuples(
            st.one_of(st.binary(max_size=40), st.just(b"x" * 30)),
            st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
        )
    ),
    stop=st.integers(0, 20),
)
def test_reading_on_from_any_cursor_gives_the_same_lines(pieces, stop):
    content = b"\xef\xbb\xbf" + b"".join(data + end for data, end in pieces)
    whole = list(InputReader(io.BytesIO(content), max_line_bytes=20))
    cursor = whole[stop].after if stop < len(whole) else Cursor()

    rest = list(InputReader(io.BytesIO(content), 20, cursor))

    assert rest == (whole[stop + 1 :] if stop < len(whole) else whole)


@given(content=st.binary(max_size=300))
def test_no_bytes_are_anything_but_lines_or_faults(content):
    checked = check(content)

    assert checked.faults
    assert checked.num_requests <= content.count(b"\n") + 1


@settings(max_examples=50)
@given(value=st.none() | st.booleans() | st.floats() | st.text() | st.lists(st.text()))
def test_no_json_is_anything_but_a_line_or_a_fault(value):
    line = json.dumps({"custom_id": value, "method": value, "url": value, "body": value})

    checked = check(line.encode())

    assert checked.num_requests == 1
    assert checked.faults
