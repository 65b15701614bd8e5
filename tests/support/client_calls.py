"""Every call of the openai package that is served, by a script that knows the package alone.

`python client_calls.py URL KEY MODEL` runs on any supported version, in an environment that has
nothing else; it prints what each call came to, as JSON.
"""

import json
import sys
import time
from typing import Any

import openai
from openai.types.responses import Response

MESSAGES = [{"role": "user", "content": "hello"}]


def main(url: str, key: str, model: str) -> dict[str, object]:
    """Make every call; return what it came to, or the class of what it raised."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=1, timeout=30)
    asked: dict[str, Any] = {"model": model, "temperature": 0}
    chat = {**asked, "messages": MESSAGES, "max_tokens": 12}
    response = {**asked, "input": "hello", "max_output_tokens": 12}
    return {
        "models": [one.id for one in client.models.list()],
        "model": client.models.retrieve(model).id,
        "chat": client.chat.completions.create(**chat).choices[0].message.content,
        "chat stream": _text(client.chat.completions.create(**chat, stream=True)),
        "completion": client.completions.create(**asked, prompt="hello", max_tokens=12)
        .choices[0]
        .text,
        "embeddings": [
            one.embedding
            for one in client.embeddings.create(model=model, input=["hello", "you"]).data
        ],
        "response": client.responses.create(**response).output_text,
        "response logprobs": _logprobs(client, response),
        "response stream": _deltas(client.responses.create(**response, stream=True)),
        "background": _in_background(client, response),
        "resumed": _resumed(client, response),
        "cancelled": client.responses.cancel(
            client.responses.create(**{**response, "max_output_tokens": 3000}, background=True).id
        ).status,
        "bad key": _error(openai.OpenAI(base_url=f"{url}/v1", api_key="wrong"), chat),
        "bad parameter": _error(client, {**chat, "temperature": 9}),
        "bad model": _error(client, {**chat, "model": "nobody"}),
        "conflict": _conflict(client, chat),
    }


def _text(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def _deltas(stream):
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def _logprobs(client, asked):
    """Return how many tokens were told by the object, by its events, and by a batch of one."""
    told = {**asked, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = client.responses.with_raw_response.create(**told)
    strict = Response.model_validate_json(response.content, strict=True).to_dict()
    part: Any = strict["output"][0]["content"][0]  # type: ignore[index]  # JSON
    events = list(client.responses.create(**told, stream=True))
    for event in events:
        type(event).model_validate_json(event.to_json(), strict=True)
    return [
        [[one["token"], len(one["top_logprobs"])] for one in part["logprobs"]],
        [one["token"] for one in _event_logprobs(events, "response.output_text.delta")],
        [one["token"] for one in _event_logprobs(events, "response.output_text.done")],
    ]


def _event_logprobs(events, kind):
    # The oldest package does not know that events have them.
    told = [json.loads(event.to_json())["logprobs"] for event in events if event.type == kind]
    return [one for some in told for one in some]


def _in_background(client, asked):
    made = client.responses.create(**asked, background=True, metadata={"a": "b"})
    while made.status in ("queued", "in_progress"):
        time.sleep(0.02)
        made = client.responses.retrieve(made.id)
    client.responses.delete(made.id)
    return [made.output_text, made.metadata, made.status]


def _resumed(client, asked):
    stream = client.responses.create(**asked, background=True, stream=True)
    begun = next(iter(stream))
    stream.close()
    rest = client.responses.retrieve(begun.response.id, stream=True, starting_after=0)
    return _deltas(rest)


def _error(client, chat):
    try:
        client.chat.completions.create(**chat)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.code, error.param]
    return None


def _conflict(client, chat):
    key = {"Idempotency-Key": f"once-{time.monotonic_ns()}"}
    client.chat.completions.create(**chat, extra_headers=key)
    return _error(client, {**chat, "max_tokens": 11, "extra_headers": key})


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201  its output is what the test reads
