import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stop_strings import StopMatcher


def feed_all(matcher, pieces):
    """Return the text a reader sees, and whether a stop string ended it."""
    seen = ""
    for piece in pieces:
        match = matcher.feed(piece)
        seen += match.text
        if match.is_stopped:
            return seen, True
    return seen + matcher.flush(), False


def test_text_is_cut_where_the_stop_string_begins():
    assert feed_all(StopMatcher(["END"]), ["one ", "two END three"]) == ("one two ", True)


def test_a_stop_string_is_found_across_pieces():
    assert feed_all(StopMatcher(["\n\nUser:"]), ["answer\n", "\nUs", "er: next"]) == (
        "answer",
        True,
    )


def test_text_that_may_become_a_stop_string_is_held_back():
    matcher = StopMatcher(["###"])

    assert matcher.feed("a#").text == "a"
    assert matcher.feed("#").text == ""
    assert matcher.feed("b").text == "##b"


def test_what_was_held_back_is_text_after_all_when_the_answer_ends():
    assert feed_all(StopMatcher(["###"]), ["a", "##"]) == ("a##", False)


def test_the_stop_string_completed_first_decides():
    assert feed_all(StopMatcher(["abcd", "bc"]), ["abcd"]) == ("a", True)


@pytest.mark.parametrize("stop_strings", [[], [""]])
def test_without_stop_strings_nothing_is_held_back(stop_strings):
    assert StopMatcher(stop_strings).feed("text").text == "text"


texts = st.text(alphabet="ab#", max_size=30)


@given(texts, st.lists(st.text(alphabet="ab#", min_size=1, max_size=4), max_size=3), st.data())
def test_the_cut_does_not_depend_on_how_the_text_is_split(text, stop_strings, data):
    borders = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    ends = [*borders, len(text)]
    pieces = [text[start:end] for start, end in zip([0, *borders], ends, strict=True)]

    whole = feed_all(StopMatcher(stop_strings), list(text))

    assert feed_all(StopMatcher(stop_strings), pieces) == whole
    assert not any(stop in whole[0] for stop in stop_strings)
