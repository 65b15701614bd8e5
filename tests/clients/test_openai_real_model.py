"""The unmodified client on the demonstration model: schemas, probabilities, several texts."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel, Field

from tests.support.strict import strictly

pytestmark = [pytest.mark.real_model, pytest.mark.e2e, pytest.mark.timeout(180)]

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France?"
ASKED = [{"role": "user", "content": QUESTION}]
GREEDY = {"model": MODEL, "temperature": 0}


CAPITAL = {
    "type": "object",
    "properties": {"capital": {"enum": ["Paris", "Rome"]}},
    "required": ["capital"],
    "additionalProperties": False,
}
PARIS = "7042"  # the token " Paris"


class City(BaseModel):
    """What the model is to say of a city."""

    name: str = Field(max_length=20)
    country: Literal["France", "Spain", "Italy"]
    population_millions: int = Field(ge=0, le=40)


@pytest.fixture(scope="module")
def ai(real):
    with real.client(timeout=120) as client:
        yield client


def test_the_model_answers_the_same_in_every_way_of_asking(ai):
    messages = [{"role": "system", "content": "You are terse."}, *ASKED]

    chat = ai.chat.completions.create(messages=messages, max_tokens=20, **GREEDY)
    response = ai.responses.create(
        input=QUESTION, instructions="You are terse.", max_output_tokens=20, **GREEDY
    )
    stream = ai.chat.completions.create(messages=messages, max_tokens=20, stream=True, **GREEDY)

    text = chat.choices[0].message.content
    assert "Paris" in text
    assert chat.choices[0].finish_reason == "stop"
    assert response.output_text == text
    assert response.status == "completed"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


def test_an_answer_parses_into_the_callers_own_model(ai):
    chat = ai.chat.completions.parse(
        messages=[{"role": "user", "content": "Tell me of Paris as JSON."}],
        response_format=City,
        max_tokens=80,
        **GREEDY,
    )
    response = ai.responses.parse(
        input="Tell me of Paris as JSON.", text_format=City, max_output_tokens=80, **GREEDY
    )

    assert chat.choices[0].message.parsed == City.model_validate_json(
        chat.choices[0].message.content
    )
    assert response.output_parsed == chat.choices[0].message.parsed


def test_an_answer_keeps_to_a_schema_that_was_written_by_hand(ai):
    schema = {"type": "json_schema", "json_schema": {"name": "capital", "schema": CAPITAL}}

    chat = ai.chat.completions.create(
        messages=ASKED, response_format=schema, max_tokens=60, **GREEDY
    )

    assert set(json.loads(chat.choices[0].message.content)) == {"capital"}


def test_characters_of_many_tokens_come_whole_alone_and_among_others(ai):
    # A family joined by invisible characters, Thai, Czech, and a rare character of four bytes.
    text = "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0e20\u0e32\u0e29\u0e32 \u010f \U00020bb7"
    schema = {"name": "exactly", "schema": {"type": "string", "enum": [text]}}
    form = {"type": "json_schema", "json_schema": schema}
    asked = {"messages": ASKED, "max_tokens": 120, "response_format": form, **GREEDY}

    with ThreadPoolExecutor(2) as executor:
        together = list(executor.map(lambda _: ai.chat.completions.create(**asked), range(2)))
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in ai.chat.completions.create(**asked, stream=True)
        if chunk.choices
    ]

    said = [one.choices[0].message.content for one in together]
    assert [json.loads(one) for one in [*said, "".join(pieces)]] == [text] * 3
    assert not any("\ufffd" in piece for piece in pieces)


def test_log_probabilities_are_those_of_the_text(ai):
    raw = ai.chat.completions.with_raw_response.create(
        messages=ASKED, max_tokens=8, logprobs=True, top_logprobs=3, **GREEDY
    )

    choice = strictly(ChatCompletion, raw.content).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    told = choice.logprobs.content
    assert b"".join(bytes(one.bytes or ()) for one in told).decode() == choice.message.content
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 3 for one in told)
    assert all(one.top_logprobs[0].token == one.token for one in told)


def test_streamed_log_probabilities_are_the_same(ai):
    asked = {"messages": ASKED, "max_tokens": 8, "logprobs": True, "top_logprobs": 2, **GREEDY}
    whole = ai.chat.completions.create(**asked).choices[0].logprobs

    chunks = list(ai.chat.completions.create(**asked, stream=True))

    strict = [strictly(ChatCompletionChunk, chunk.to_json()) for chunk in chunks]
    told = [one.choices[0].logprobs for one in strict]
    streamed = [entry for one in told if one is not None for entry in one.content or ()]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole.content]
    assert streamed[0].logprob == pytest.approx(whole.content[0].logprob, abs=1e-3)


def test_a_response_tells_the_same_log_probabilities_as_a_chat(ai):
    chat = {"messages": ASKED, "max_tokens": 8, "logprobs": True, "top_logprobs": 2, **GREEDY}
    told = ai.chat.completions.create(**chat).choices[0].logprobs.content
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, **GREEDY}

    raw = ai.responses.with_raw_response.create(input=QUESTION, max_output_tokens=8, **asked)

    (item,) = strictly(Response, raw.content).output
    assert isinstance(item, ResponseOutputMessage)
    (part,) = item.content
    assert isinstance(part, ResponseOutputText)
    assert part.logprobs is not None
    assert [one.token for one in part.logprobs] == [one.token for one in told]
    assert [one.bytes for one in part.logprobs] == [one.bytes for one in told]
    assert part.logprobs[0].logprob == pytest.approx(told[0].logprob, abs=1e-3)


def test_completions_tell_log_probabilities_in_their_own_shape(ai):
    raw = ai.completions.with_raw_response.create(
        prompt="The capital of France is", max_tokens=4, logprobs=2, **GREEDY
    )

    choice = strictly(Completion, raw.content).choices[0]
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    assert choice.logprobs.text_offset is not None
    assert choice.logprobs.text_offset[:2] == [0, len((choice.logprobs.tokens or [""])[0])]
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs or ())


def test_several_texts_are_drawn_each_with_its_own_luck(ai):
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 16, "n": 3, "seed": 11}

    first, second = (ai.chat.completions.create(**asked, temperature=1.5) for _ in range(2))

    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in second.choices]
    assert first.usage.completion_tokens > 3


def test_a_banned_token_does_not_come(ai):
    asked = {"prompt": "The capital of France is", "max_tokens": 1, **GREEDY}

    banned = ai.completions.create(**asked, logit_bias={PARIS: -100})

    assert ai.completions.create(**asked).choices[0].text == " Paris"
    assert banned.choices[0].text != " Paris"


def test_a_penalty_for_repetition_changes_the_text(ai):
    asked = {"prompt": "la la la la la la la", "max_tokens": 24, **GREEDY}

    plain = ai.completions.create(**asked).choices[0].text
    varied = ai.completions.create(**asked, frequency_penalty=2).choices[0].text

    assert varied != plain


def test_the_clients_own_reader_of_responses_is_content(ai):
    with ai.responses.stream(input=QUESTION, max_output_tokens=40, **GREEDY) as stream:
        text = "".join(event.delta for event in stream if event.type.endswith("text.delta"))
        final = stream.get_final_response()

    assert final.status == "completed"
    assert final.output_text == text
