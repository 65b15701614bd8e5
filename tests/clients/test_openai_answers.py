"""Chats, completions and responses through the unmodified client, on real processes."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai.pagination import SyncPage
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.support.fake_engine import as_prompt, byte_tokenizer, expected_text
from tests.support.jobs import MODEL
from tests.support.live_stack import API_KEY, CONTEXT
from tests.support.strict import strictly

HELLO = {"role": "user", "content": "hello"}
MESSAGES = [{"role": "system", "content": "be brief"}, HELLO]
IDS = byte_tokenizer().encode("hello")
GREEDY = {"model": MODEL, "temperature": 0}


def wait_for(ai, response):
    """Poll as the guide says."""
    while response.status in ("queued", "in_progress"):
        response = ai.responses.retrieve(response.id)
    return response


def test_a_chat_is_answered(ai):
    raw = ai.chat.completions.with_raw_response.create(messages=MESSAGES, max_tokens=12, **GREEDY)

    completion = strictly(ChatCompletion, raw.content)
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == MODEL
    assert completion.choices[0].message.content == expected_text(as_prompt(*MESSAGES), 12)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 12
    assert completion.usage.prompt_tokens == len(as_prompt(*MESSAGES))
    assert raw.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("prompt", ["hello", ["hello"], IDS, [IDS]])
def test_a_prompt_is_completed_however_it_is_spelled(ai, prompt):
    raw = ai.completions.with_raw_response.create(prompt=prompt, max_tokens=9, **GREEDY)

    completion = strictly(Completion, raw.content)
    assert completion.id.startswith("cmpl-")
    assert completion.choices[0].text == expected_text("hello", 9)


def test_a_response_is_made_at_once(ai):
    raw = ai.responses.with_raw_response.create(
        input="hello", instructions="be brief", max_output_tokens=12, user="u", **GREEDY
    )

    response = strictly(Response, raw.content)
    assert response.id.startswith("resp_")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == expected_text(as_prompt(*MESSAGES), 12)
    assert (response.instructions, response.max_output_tokens, response.user) == (
        "be brief",
        12,
        "u",
    )
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + 12


def test_a_response_is_made_in_the_background(ai):
    begun = ai.responses.create(
        input=[HELLO], background=True, max_output_tokens=12, metadata={"team": "search"}, **GREEDY
    )

    response = wait_for(ai, begun)

    raw = ai.responses.with_raw_response.retrieve(begun.id)
    assert strictly(Response, raw.content) == response
    assert begun.status in ("queued", "in_progress")
    assert response.background is True
    assert response.metadata == {"team": "search"}
    assert response.output_text == expected_text(as_prompt(HELLO), 12)


def test_an_answer_of_a_response_can_be_sent_back(ai):
    first = ai.responses.create(input="hello", max_output_tokens=8, **GREEDY)
    history = [
        HELLO,
        *(item.model_dump() for item in first.output),
        {"role": "user", "content": "and"},
    ]

    second = ai.responses.create(input=history, max_output_tokens=8, **GREEDY)

    said = [HELLO, {"role": "assistant", "content": first.output_text}, history[-1]]
    assert second.output_text == expected_text(as_prompt(*said), 8)


def test_a_response_is_cancelled(ai):
    begun = ai.responses.create(input="hello", background=True, max_output_tokens=3000, **GREEDY)

    raw = ai.responses.with_raw_response.cancel(begun.id)

    assert strictly(Response, raw.content).status == "cancelled"
    assert ai.responses.retrieve(begun.id).status == "cancelled"
    assert ai.responses.cancel(begun.id).status == "cancelled"


def test_only_what_runs_in_the_background_can_be_cancelled(ai):
    made = ai.responses.create(input="hello", max_output_tokens=1, **GREEDY)

    with pytest.raises(openai.BadRequestError):
        ai.responses.cancel(made.id)


def test_a_deleted_response_is_gone(ai):
    made = ai.responses.create(input="hello", max_output_tokens=1, **GREEDY)

    ai.responses.delete(made.id)

    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        ai.responses.delete(made.id)


def test_a_response_that_is_not_to_be_stored_is_not(ai):
    made = ai.responses.create(input="hello", max_output_tokens=1, store=False, **GREEDY)

    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(made.id)


def test_stop_strings_cut_the_same_everywhere(ai):
    whole = expected_text(as_prompt(HELLO), 40)
    stop = whole[10:13]

    chat = ai.chat.completions.create(messages=[HELLO], max_tokens=40, stop=stop, **GREEDY)

    assert chat.choices[0].message.content == whole[: whole.index(stop)]
    assert chat.choices[0].finish_reason == "stop"


def test_a_seed_makes_a_drawn_answer_the_same_again(ai):
    asked = {"model": MODEL, "messages": [HELLO], "max_tokens": 12, "seed": 5}

    first, second = (ai.chat.completions.create(**asked) for _ in range(2))

    assert first.choices[0].message.content == expected_text(as_prompt(HELLO), 12, seed=5)
    assert second.choices == first.choices


@pytest.mark.parametrize(
    ("tier", "told"),
    [(None, "default"), ("auto", "auto"), ("flex", "flex"), ("priority", "priority")],
)
def test_service_tiers_are_taken(ai, tier, told):
    raw = ai.chat.completions.with_raw_response.create(
        messages=[HELLO], max_tokens=1, service_tier=tier, **GREEDY
    )

    assert strictly(ChatCompletion, raw.content).service_tier == told


def test_the_models_are_listed(ai):
    raw = ai.models.with_raw_response.list()

    assert [model.id for model in strictly(SyncPage[Model], raw.content).data] == [MODEL]
    assert ai.models.retrieve(MODEL).id == MODEL


def test_an_idempotency_key_gets_the_first_answer_again(ai):
    asked = {"messages": [HELLO], "max_tokens": 4, **GREEDY}
    key = {"Idempotency-Key": "one-and-the-same"}

    first, second = (ai.chat.completions.create(**asked, extra_headers=key) for _ in range(2))

    assert second == first
    with pytest.raises(openai.ConflictError):
        ai.chat.completions.create(**{**asked, "max_tokens": 5}, extra_headers=key)


def test_answers_of_many_at_once_do_not_mix(ai):
    messages = [{"role": "user", "content": f"question {number}"} for number in range(96)]

    def ask(message):
        return ai.chat.completions.create(messages=[message], max_tokens=20, **GREEDY)

    with ThreadPoolExecutor(32) as executor:
        answers = list(executor.map(ask, messages))

    texts = [answer.choices[0].message.content for answer in answers]
    assert texts == [expected_text(as_prompt(message), 20) for message in messages]


def test_the_same_job_says_the_same_in_every_way_of_asking(ai, live):
    whole = expected_text(as_prompt(*MESSAGES), 30)
    stop = whole[12:15]
    chat = {"messages": MESSAGES, "max_tokens": 30, "stop": stop, **GREEDY}
    plain = {"prompt": as_prompt(*MESSAGES), "max_tokens": 30, "stop": stop, **GREEDY}
    # A response has no stop strings of its own.
    response = {"input": MESSAGES, "max_output_tokens": 30, **GREEDY}
    live.start_cpu_worker()

    texts = {
        ai.chat.completions.create(**chat).choices[0].message.content,
        ai.completions.create(**plain).choices[0].text,
        text_of_native_job(live, {"messages": MESSAGES, "max_tokens": 30, "stop": stop}),
        answer_of_batch_line(ai, live, "/v1/chat/completions", chat, ChatCompletion)
        .choices[0]
        .message.content,
        answer_of_batch_line(ai, live, "/v1/completions", plain, Completion).choices[0].text,
    }
    uncut = {
        ai.responses.create(**response).output_text,
        wait_for(ai, ai.responses.create(**response, background=True)).output_text,
        answer_of_batch_line(ai, live, "/v1/responses", response, Response).output_text,
    }

    assert texts == {whole.partition(stop)[0]}
    assert uncut == {whole}


def answer_of_batch_line(ai, live, endpoint, body, kind):
    line = {"custom_id": "1", "method": "POST", "url": endpoint, "body": body}
    file = ai.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = ai.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    live.cluster.wait_until(lambda: ai.batches.retrieve(batch.id).status == "completed")
    output = ai.files.content(ai.batches.retrieve(batch.id).output_file_id).text
    return strictly(kind, json.dumps(json.loads(output)["response"]["body"]))


def test_a_prompt_may_fill_the_context_but_for_one_token(ai):
    fits, full, over = ("x" * size for size in (CONTEXT - 1, CONTEXT, CONTEXT + 1))

    choice = ai.completions.create(prompt=fits, max_tokens=1, **GREEDY).choices[0]

    assert (choice.text, choice.finish_reason) == (expected_text(fits, 1), "length")
    for prompt in (full, over):
        with pytest.raises(openai.BadRequestError, match=f"{CONTEXT} .*{len(prompt)}"):
            ai.completions.create(prompt=prompt, max_tokens=1, **GREEDY)


@pytest.mark.parametrize(
    "stop", ["\n", "\U0001f600", "a\u0000b", "y" * 10_240, ["a", "b", "c", "d"]]
)
def test_odd_stop_strings_are_obeyed(ai, stop):
    whole = expected_text(as_prompt(HELLO), 40)

    completion = ai.chat.completions.create(messages=[HELLO], max_tokens=40, stop=stop, **GREEDY)

    stops = [stop] if isinstance(stop, str) else stop
    cuts = [whole.index(one) for one in stops if one in whole]
    assert completion.choices[0].message.content == whole[: min(cuts, default=40)]


def text_of_native_job(live, body):
    headers = {"Authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=f"{live.api.url}/v1", headers=headers, timeout=30) as client:
        job_id = client.post("/jobs", json=body).json()["id"]
        return client.get(f"/jobs/{job_id}", params={"wait": 20}).json()["result"]["text"]


def test_json_is_ascii_and_survives_any_text(ai):
    raw = ai.responses.with_raw_response.create(
        input="na\u00efve \u2615 \u0000 \U0001f600", max_output_tokens=1, **GREEDY
    )

    assert raw.content.isascii()
    assert json.loads(raw.content)["status"] == "incomplete"
