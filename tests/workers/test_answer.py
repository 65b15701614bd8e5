"""One text, token by token: its end, what is told of it, and its log probabilities."""

import math

import pytest

from engine.grammar import Grammars
from engine.plan import Completion, TokenLogprobs, TokenOutput
from engine.sequence import FinishReason, SamplingParams, Sequence
from engine.stop_strings import StopMatcher
from queueing.token_stream import Piece
from tests.support.fake_engine import byte_tokenizer
from workers.answer import Answer

TOKENIZER = byte_tokenizer()
GRAMMARS = Grammars(TOKENIZER)


def an_answer(*stops, num_logprobs=None):
    sampling = SamplingParams(max_tokens=50, num_logprobs=num_logprobs)
    sequence = Sequence("job_1/1", [1], sampling)
    return Answer(0, sequence, TOKENIZER.detokenizer(), StopMatcher(stops), GRAMMARS, None)


def say(answer, text, logprob=-0.25):
    """Feed the tokens of a text; return whether each ended it."""
    asked = answer.sequence.sampling.num_logprobs
    ids = TOKENIZER.encode(text)
    told = None if asked is None else TokenLogprobs(logprob, ((ids[0], logprob),) * asked)
    return [answer.take(TokenOutput("job_1/1", token_id, told)) for token_id in ids]


def end(answer, reason=FinishReason.LENGTH):
    answer.end(Completion("job_1/1", (), reason, 1, answer.num_tokens, 0, 0))


def tokens_of(answer):
    return [one["token"] for one in answer.choice().logprobs["content"]]


def test_a_text_ends_where_its_sequence_does():
    answer = an_answer()
    say(answer, "héllo")

    end(answer)

    assert (answer.choice().text, answer.choice().finish_reason) == ("héllo", "length")
    assert answer.choice().logprobs is None


def test_a_stop_string_ends_a_text_before_itself():
    answer = an_answer("END")

    assert say(answer, "the END") == [False] * 6 + [True]
    assert (answer.choice().text, answer.choice().finish_reason) == ("the ", "stop")
    assert answer.num_output_tokens == 7


def test_a_stop_string_that_the_last_bytes_complete_ends_it_too():
    answer = an_answer("\ufffd")
    for token_id in TOKENIZER.encode("é")[:1]:
        answer.take(TokenOutput("job_1/1", token_id))

    end(answer)

    assert (answer.choice().text, answer.choice().finish_reason) == ("", "stop")


def test_what_is_told_is_what_came_since():
    answer = an_answer("END")
    say(answer, "ab")
    first = answer.untold()
    answer.note_told(first)
    say(answer, "cEN")

    assert first == Piece(0, 0, "ab")
    assert answer.untold() == Piece(0, 2, "c")


def test_what_was_not_told_is_told_with_what_comes():
    answer = an_answer()
    say(answer, "ab")
    answer.untold()
    say(answer, "c")

    assert answer.untold() == Piece(0, 0, "abc")


def test_nothing_is_told_of_half_a_character():
    answer = an_answer()
    answer.take(TokenOutput("job_1/1", TOKENIZER.encode("é")[0]))

    assert answer.untold() is None


def test_each_token_is_told_with_its_bytes():
    answer = an_answer(num_logprobs=1)
    say(answer, "é")

    end(answer)

    first, second = answer.choice().logprobs["content"]
    assert (first["bytes"], second["bytes"]) == ([0xC3], [0xA9])
    assert (first["logprob"], first["token"]) == (-0.25, "\ufffd")
    assert first["top_logprobs"] == [
        {"token": "\ufffd", "logprob": -0.25, "bytes": [0xC3]},
    ]


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e30])
def test_what_json_cannot_say_is_told_as_next_to_impossible(logprob):
    answer = an_answer(num_logprobs=0)
    say(answer, "a", logprob)

    end(answer)

    assert answer.choice().logprobs["content"][0]["logprob"] == -9999.0


def test_a_stop_string_takes_its_tokens_with_it():
    answer = an_answer("END", num_logprobs=0)
    say(answer, "to END")

    assert tokens_of(answer) == ["t", "o", " "]


def test_tokens_are_told_when_their_text_is_certain():
    answer = an_answer("END", num_logprobs=0)
    say(answer, "aEN")
    first = answer.untold()
    answer.note_told(first)
    say(answer, "b")

    second = answer.untold()

    assert [one["token"] for one in first.logprobs] == ["a"]
    assert (second.num_before, second.text) == (1, "ENb")
    assert [one["token"] for one in second.logprobs] == ["E", "N", "b"]
