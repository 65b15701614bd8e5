"""Embeddings through the unmodified client, on real processes."""

import openai
import pytest
from openai.types import CreateEmbeddingResponse

from tests.support.fake_engine import byte_tokenizer, expected_vector
from tests.support.jobs import MODEL
from tests.support.strict import strictly

TOKENIZER = byte_tokenizer()
IDS = TOKENIZER.encode("hello")


def vector_of(text):
    return expected_vector(TOKENIZER.encode(text)).tolist()


@pytest.mark.parametrize("given", ["hello", ["hello"], IDS, [IDS]])
def test_an_input_is_embedded_however_it_is_spelled(ai, given):
    made = ai.embeddings.create(model=MODEL, input=given)

    (embedding,) = made.data
    assert embedding.embedding == vector_of("hello")
    assert (made.model, made.usage.prompt_tokens, made.usage.total_tokens) == (MODEL, 5, 5)


def test_an_answer_in_decimals_is_what_the_client_expects_and_the_same_numbers(ai):
    raw = ai.embeddings.with_raw_response.create(
        model=MODEL, input=["hello", "you"], encoding_format="float", user="u"
    )

    made = strictly(CreateEmbeddingResponse, raw.content)
    assert [one.index for one in made.data] == [0, 1]
    assert [one.embedding for one in made.data] == [
        pytest.approx(vector_of(text), rel=1e-7) for text in ("hello", "you")
    ]
    assert raw.headers["x-request-id"].startswith("req_")


def test_as_many_inputs_as_a_request_may_have_come_back_in_their_order(ai):
    texts = [f"text {number}" for number in range(2048)]

    made = ai.embeddings.create(model=MODEL, input=texts)

    assert [one.index for one in made.data] == list(range(2048))
    assert [one.embedding for one in made.data] == [vector_of(text) for text in texts]


def test_one_input_too_many_is_refused(ai):
    with pytest.raises(openai.BadRequestError) as caught:
        ai.embeddings.create(model=MODEL, input=["x"] * 2049)

    assert (caught.value.code, caught.value.param) == ("invalid_request", "input")


def test_what_is_not_served_is_refused_by_name(ai):
    with pytest.raises(openai.BadRequestError) as caught:
        ai.embeddings.create(model=MODEL, input="x", dimensions=256)

    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "dimensions")
