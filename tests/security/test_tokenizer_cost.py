"""What a tokenizer finds hardest costs it little more than any text: so many seconds a megabyte."""

from time import process_time

import pytest

from engine.tokenizer import Tokenizer

pytestmark = pytest.mark.real_model

MEGABYTE = 1_048_576
SHARE = 8
# The largest body is a megabyte; who sends it waits, and the other threads go on meanwhile.
LIMIT_S_PER_MEGABYTE = 10.0


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return Tokenizer.load(model_folder)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        " ",
        "\n",
        "0",
        "a ",
        "ab",
        "\u0000",
        "\u00e9",
        "\u0e01\u0e33",
        "\U0001f469\u200d",
        "a\u0301",
        "<|",
    ],
    ids=ascii,
)
def test_text_of_every_kind_is_counted_in_time(tokenizer, piece):
    text = piece * (MEGABYTE // SHARE // len(piece.encode()))
    began_s = process_time()

    num_tokens = len(tokenizer.encode(text))

    assert num_tokens > 0
    assert (process_time() - began_s) * SHARE < LIMIT_S_PER_MEGABYTE
