"""Streamed answers through the unmodified client, on real processes."""

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseQueuedEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)

from tests.support.fake_engine import as_prompt, expected_text
from tests.support.jobs import MODEL
from tests.support.live_stack import API_KEY
from tests.support.strict import strictly

HELLO = {"role": "user", "content": "hello"}
GREEDY = {"model": MODEL, "temperature": 0}
EVENTS: dict[str, type[Any]] = {
    "response.completed": ResponseCompletedEvent,
    "response.content_part.added": ResponseContentPartAddedEvent,
    "response.content_part.done": ResponseContentPartDoneEvent,
    "response.created": ResponseCreatedEvent,
    "response.failed": ResponseFailedEvent,
    "response.in_progress": ResponseInProgressEvent,
    "response.incomplete": ResponseIncompleteEvent,
    "response.output_item.added": ResponseOutputItemAddedEvent,
    "response.output_item.done": ResponseOutputItemDoneEvent,
    "response.output_text.delta": ResponseTextDeltaEvent,
    "response.output_text.done": ResponseTextDoneEvent,
    "response.queued": ResponseQueuedEvent,
}


@pytest.fixture
def raw(live):
    """Return a way to post a body and get the data of each event as it was written."""

    def post(path, body):
        answer = httpx.post(
            f"{live.api.url}/v1{path}",
            headers={"Authorization": f"Bearer {API_KEY}"},
            json={"stream": True, **GREEDY, **body},
            timeout=20,
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.text.splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    return post


def text_of(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_a_chat_comes_as_it_is_made(ai):
    chunks = list(
        ai.chat.completions.create(messages=[HELLO], max_tokens=60, stream=True, **GREEDY)
    )

    said = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(said) == expected_text(as_prompt(HELLO), 60)
    assert len(chunks) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_the_usage_comes_last_for_those_who_ask(ai):
    options = {"include_usage": True}

    *chunks, last = ai.chat.completions.create(
        messages=[HELLO], max_tokens=9, stream=True, stream_options=options, **GREEDY
    )

    assert last.choices == []
    assert last.usage.completion_tokens == 9
    assert {chunk.usage for chunk in chunks} == {None}


def test_every_chunk_of_a_chat_is_one_the_client_knows(raw):
    body = {"messages": [HELLO], "max_tokens": 9, "stream_options": {"include_usage": True}}

    *chunks, end = raw("/chat/completions", body)

    assert end == "[DONE]"
    assert [strictly(ChatCompletionChunk, chunk).object for chunk in chunks]


def test_a_completion_comes_as_it_is_made(raw):
    *chunks, end = raw("/completions", {"prompt": "hello", "max_tokens": 30})

    # OpenAI's own chunks have a null here that its client's model does not know.
    known = [chunk.replace('"finish_reason":null', '"finish_reason":"stop"') for chunk in chunks]
    choices = [strictly(Completion, chunk).choices[0] for chunk in known]
    assert "".join(choice.text for choice in choices) == expected_text("hello", 30)
    assert choices[-1].finish_reason == "length"
    assert end == "[DONE]"


def test_every_event_of_a_response_is_one_the_client_knows(raw):
    told = raw("/responses", {"input": "hello", "max_output_tokens": 9})

    events: list[Any] = [strictly(EVENTS[json.loads(data)["type"]], data) for data in told]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert text_of(events) == expected_text(as_prompt(HELLO), 9)
    assert events[-1].response.output_text == text_of(events)


def test_every_event_of_a_response_with_log_probabilities_is_one_the_client_knows(raw):
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    told = raw("/responses", {"input": "hello", "max_output_tokens": 9, **asked})

    events: list[Any] = [strictly(EVENTS[json.loads(data)["type"]], data) for data in told]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    streamed = [entry for event in deltas for entry in event.logprobs]
    assert [one.model_dump() for one in streamed] == [one.model_dump() for one in done.logprobs]
    assert "".join(entry.token for entry in streamed) == done.text
    assert {len(entry.top_logprobs) for entry in streamed} == {3}
    assert [entry.token for entry in events[-1].response.output[0].content[0].logprobs] == [
        entry.token for entry in streamed
    ]


def test_log_probabilities_can_be_asked_for_again(ai):
    include = ["message.output_text.logprobs"]
    asked = {"input": "hello", "max_output_tokens": 5, "background": True, **GREEDY}
    told, untold = ai.responses.create(**asked, include=include), ai.responses.create(**asked)
    while ai.responses.retrieve(untold.id).status != "incomplete":
        pass

    again = ai.responses.retrieve(told.id, include=include)

    assert len(again.output[0].content[0].logprobs) == 5
    with pytest.raises(openai.BadRequestError, match="without log probabilities"):
        ai.responses.retrieve(untold.id, include=include)


def test_an_answer_with_log_probabilities_can_be_sent_back(ai):
    include = ["message.output_text.logprobs"]
    first = ai.responses.create(input="hello", max_output_tokens=4, include=include, **GREEDY)
    said = [HELLO, *(item.model_dump(exclude_none=True) for item in first.output), HELLO]

    second = ai.responses.create(input=said, max_output_tokens=4, **GREEDY)

    spoken = {"role": "assistant", "content": first.output_text}
    assert second.output_text == expected_text(as_prompt(HELLO, spoken, HELLO), 4)


def test_the_clients_own_reader_of_chats_is_content(ai):
    whole = expected_text(as_prompt(HELLO), 40)
    asked = {"messages": [HELLO], "max_tokens": 40, "stop": whole[20:24], **GREEDY}

    with ai.chat.completions.stream(**asked) as stream:
        final = stream.until_done().get_final_completion()

    assert final.choices[0].message.content == whole[: whole.index(whole[20:24])]


@pytest.mark.parametrize("after", [0, 4, 17, 200, 9_000])
def test_who_lost_the_connection_goes_on_after_the_last_event_he_saw(ai, after):
    asked = {"input": "hello", "max_output_tokens": 50, "background": True, **GREEDY}
    whole = list(ai.responses.create(stream=True, **asked))

    rest = list(ai.responses.retrieve(whole[0].response.id, stream=True, starting_after=after))

    assert rest[:-1] == [event for event in whole[:-1] if event.sequence_number > after]
    assert rest[-1].response == whole[-1].response


def test_a_response_in_the_background_outlives_its_first_reader(ai):
    asked = {"input": "hello", "max_output_tokens": 100, "background": True, **GREEDY}
    with ai.responses.create(stream=True, **asked) as stream:
        first = next(stream)

    events = list(ai.responses.retrieve(first.response.id, stream=True))

    assert text_of(events) == expected_text(as_prompt(HELLO), 100)
    assert events[-1].type == "response.incomplete"


def test_a_response_that_was_not_streamed_cannot_be_followed(ai):
    made = ai.responses.create(input="hello", max_output_tokens=1, background=True, **GREEDY)

    with pytest.raises(openai.BadRequestError):
        ai.responses.retrieve(made.id, stream=True)


def test_a_response_that_is_cancelled_while_it_is_followed_ends_as_failed(ai):
    asked = {"input": "hello", "max_output_tokens": 3000, "background": True, **GREEDY}
    with ai.responses.create(stream=True, **asked) as stream:
        created = next(stream)
        ai.responses.cancel(created.response.id)

        *_, last = stream

    assert last.type == "response.failed"
    assert last.response.status == "cancelled"


def test_a_refusal_comes_before_the_stream(ai):
    with pytest.raises(openai.BadRequestError):
        ai.chat.completions.create(messages=[], stream=True, **GREEDY)


def test_a_stop_string_never_shows_in_the_stream(ai):
    whole = expected_text(as_prompt(HELLO), 40)
    stop = whole[20:24]

    chunks = ai.chat.completions.create(
        messages=[HELLO], max_tokens=40, stop=[stop], stream=True, **GREEDY
    )

    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == whole[: whole.index(stop)]
