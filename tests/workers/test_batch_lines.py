"""Lines on their way to jobs: each endpoint's, those that count, and inputs that are lost."""

import json
import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from queueing.admission import RateLimits
from queueing.batch import BatchStatus
from queueing.job import DEFAULT_TENANT, generate_queue
from queueing.store import connect
from queueing.tenants import Tenant
from tests.support.batch_bench import (
    ENDPOINT,
    MODEL,
    BatchBench,
    a_line,
    answer_to,
    as_jsonl,
    text_of,
    vector_to,
)
from tests.support.strict import strictly

COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/completions", "/v1/responses", "/v1/embeddings"
TYPES = [(ENDPOINT, ChatCompletion), (COMPLETIONS, Completion), (RESPONSES, Response)]
# Two words, and 16 tokens that may be generated.
COST = 18


@pytest.fixture
def bench(redis_url, tmp_path) -> Iterator[BatchBench]:
    client = connect(redis_url)
    yield BatchBench(client, tmp_path)
    client.close()


def ids(number: int) -> list[str]:
    return [f"line-{index}" for index in range(number)]


def limited(bench: BatchBench, **limits: int) -> None:
    bench.tenant = Tenant(DEFAULT_TENANT, limits=RateLimits(**limits))


def only_error(bench: BatchBench, batch) -> dict[str, str | None]:
    (line,) = bench.lines(batch.error_file)
    error: dict[str, str | None] = line["response"]["body"]["error"]
    return error


@pytest.mark.parametrize(("url", "kind"), TYPES)
def test_a_line_of_each_endpoint_is_answered_in_that_endpoints_own_type(bench, url, kind):
    batch = bench.settle(bench.create(as_jsonl([a_line("one", url=url)]), endpoint=url))

    (line,) = bench.lines(batch.output_file)
    body = line["response"]["body"]
    strictly(kind, json.dumps(body))
    assert text_of(body) == answer_to("say one")


def test_lines_of_embeddings_are_answered_with_their_vectors(bench):
    lines = [a_line(one, url=EMBEDDINGS) for one in ids(20)]

    batch = bench.settle(bench.create(as_jsonl(lines), endpoint=EMBEDDINGS))

    told = {
        line["custom_id"]: strictly(CreateEmbeddingResponse, json.dumps(line["response"]["body"]))
        for line in bench.lines(batch.output_file)
    }
    vectors = {one: struct.pack("<3f", *body.data[0].embedding) for one, body in told.items()}
    assert vectors == {one: vector_to(f"say {one}") for one in ids(20)}
    assert (batch.progress.completed, batch.progress.usage.prompt_tokens) == (20, 40)


def test_a_line_of_embeddings_is_encoded_as_it_asks(bench):
    lines = [a_line("one", url=EMBEDDINGS, encoding_format="base64")]

    batch = bench.settle(bench.create(as_jsonl(lines), endpoint=EMBEDDINGS))

    (line,) = bench.lines(batch.output_file)
    assert b64decode(line["response"]["body"]["data"][0]["embedding"]) == vector_to("say one")


def test_a_line_of_embeddings_has_one_input(bench):
    lines = [
        a_line("list", url=EMBEDDINGS, input=["say list"]),
        a_line("two", url=EMBEDDINGS, input=["say", "two"]),
    ]

    batch = bench.settle(bench.create(as_jsonl(lines), endpoint=EMBEDDINGS))

    assert [line["custom_id"] for line in bench.lines(batch.output_file)] == ["list"]
    assert only_error(bench, batch)["param"] == "input"


@pytest.mark.parametrize("url", [url for url, _ in TYPES])
def test_every_line_of_each_endpoint_is_in_one_file_once(bench, url):
    lines = [a_line(one, url=url) for one in ids(20)]

    batch = bench.settle(bench.create(as_jsonl(lines), endpoint=url))

    bench.check_conserved(batch, ids(20))
    assert batch.progress.completed == 20


def test_a_line_for_another_endpoint_goes_to_the_error_file_alone(bench):
    lines = [
        a_line("good"),
        a_line("other", url=COMPLETIONS),
        a_line("unknown", url="/v1/foo"),
        a_line("slash", url=f"{ENDPOINT}/"),
        a_line("host", url=f"https://host{ENDPOINT}"),
    ]

    batch = bench.settle(bench.create(as_jsonl(lines)))

    bench.check_conserved(batch, ["good", "other", "unknown", "slash", "host"])
    errors = [line["response"] for line in bench.lines(batch.error_file)]
    assert {error["status_code"] for error in errors} == {400}
    assert {error["body"]["error"]["param"] for error in errors} == {"url"}
    assert batch.progress.completed == 1


@pytest.mark.parametrize(
    ("url", "name", "value"),
    [
        (ENDPOINT, "stream", True),
        (ENDPOINT, "service_tier", "priority"),
        (COMPLETIONS, "stream", True),
        (COMPLETIONS, "stream_options", {"include_usage": True}),
        (RESPONSES, "stream", True),
        (RESPONSES, "background", True),
        (RESPONSES, "store", True),
        (RESPONSES, "service_tier", "priority"),
    ],
)
def test_what_no_line_can_have_is_refused_by_name(bench, url, name, value):
    line = a_line("one", url=url, **{name: value})

    batch = bench.settle(bench.create(as_jsonl([line]), endpoint=url))

    error = only_error(bench, batch)
    assert (error["code"], error["param"]) == ("unsupported_parameter", name)


@pytest.mark.parametrize("url", [ENDPOINT, RESPONSES])
def test_what_asks_for_nothing_is_taken_in_a_line(bench, url):
    neutral: dict[str, Any] = {"stream": False, "service_tier": "auto", "store": False}

    batch = bench.settle(bench.create(as_jsonl([a_line("a", url=url, **neutral)]), endpoint=url))

    bench.check_conserved(batch, ["a"])
    assert batch.progress.completed == 1


def test_a_response_of_a_line_repeats_what_was_asked(bench):
    asked: dict[str, Any] = {
        "metadata": {"team": "a"},
        "max_output_tokens": 9,
        "instructions": "be brief",
    }

    batch = bench.settle(
        bench.create(as_jsonl([a_line("a", url=RESPONSES, **asked)]), endpoint=RESPONSES)
    )

    (line,) = bench.lines(batch.output_file)
    body = line["response"]["body"]
    assert {name: body[name] for name in asked} == asked
    assert body["status"] == "completed"
    assert body["background"] is False


def test_lines_wait_for_their_tenants_tokens_and_none_of_them_fails(bench):
    limited(bench, tokens_per_min=4 * COST)
    began_s = bench.clock.now_ms() / 1000

    batch = bench.settle(bench.create(as_jsonl(map(a_line, ids(12)))))

    bench.check_conserved(batch, ids(12))
    assert batch.progress.completed == 12
    took_s = bench.clock.now_ms() / 1000 - began_s
    # A burst of six less the share that is left, then four a minute: eight of them come later.
    assert took_s >= 7.5 * 15


def test_lines_leave_a_share_of_the_tokens_to_live_calls(bench):
    limited(bench, tokens_per_min=10 * COST)
    batch_id = bench.create(as_jsonl(map(a_line, ids(20))), window=100)

    bench.tick()

    verdict = bench.admission.take(DEFAULT_TENANT, bench.tenant.limits, 4 * COST)
    assert verdict.used_up is None
    assert bench.read(batch_id).progress.num_in_flight == 11


def test_live_calls_that_take_all_tokens_hold_lines_up_until_there_are_some(bench):
    limited(bench, tokens_per_min=10 * COST)
    bench.admission.take(DEFAULT_TENANT, bench.tenant.limits, 15 * COST)
    batch_id = bench.create(as_jsonl(map(a_line, ids(2))))
    bench.tick()
    waiting = bench.read(batch_id).progress

    batch = bench.settle(batch_id)

    assert waiting.cursor.num_requests == 0
    assert "tokens are used up" in waiting.notes[0]
    assert batch.progress.completed == 2
    assert batch.progress.notes == ()


def test_lines_count_as_tokens_and_not_as_requests(bench):
    limited(bench, requests_per_min=1, tokens_per_day=1_000)

    batch = bench.settle(bench.create(as_jsonl(map(a_line, ids(6)))))

    assert batch.progress.completed == 6
    verdict = bench.admission.take(DEFAULT_TENANT, bench.tenant.limits, 1_000 - 6 * COST + 1)
    assert verdict.used_up == "day"


def test_a_day_that_is_used_up_lets_lines_wait_until_midnight(bench):
    limited(bench, tokens_per_day=8 * COST)

    batch_id = bench.create(as_jsonl(map(a_line, ids(10))), window_s=4 * 86_400)
    bench.tick()
    num_sent = bench.read(batch_id).progress.cursor.num_requests

    bench.clock.advance(ms=86_400_000)
    batch = bench.settle(batch_id)

    assert num_sent == 6
    bench.check_conserved(batch, ids(10))
    assert batch.progress.completed == 10


def test_a_window_that_ends_before_the_tokens_come_expires_the_lines_that_waited(bench):
    limited(bench, tokens_per_day=8 * COST)

    batch = bench.settle(bench.create(as_jsonl(map(a_line, ids(10))), window_s=60))

    assert batch.status is BatchStatus.EXPIRED
    bench.check_conserved(batch, ids(10))
    assert batch.progress.completed == 6
    assert "tokens are used up" in batch.progress.notes[0]


def test_a_line_beyond_a_whole_days_tokens_is_refused_and_the_rest_runs(bench):
    limited(bench, tokens_per_day=10 * COST)
    lines = [a_line("a"), a_line("large", max_tokens=32, n=6), a_line("b")]

    batch = bench.settle(bench.create(as_jsonl(lines)))

    assert batch.progress.completed == 2
    assert only_error(bench, batch)["code"] == "quota_exceeded"


def lose_input(bench: BatchBench) -> None:
    for path in (bench.data_dir / "files").iterdir():
        path.unlink()


def cut_input(bench: BatchBench) -> None:
    for path in (bench.data_dir / "files").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def garble_input(bench: BatchBench) -> None:
    for path in (bench.data_dir / "files").iterdir():
        path.write_bytes(b"\n" * path.stat().st_size)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lose_input, "input_file_missing"),
        (garble_input, "input_file_cut_short"),
        (cut_input, "invalid_json_line"),
    ],
)
def test_a_validated_batch_whose_input_is_lost_fails_and_keeps_what_was_answered(
    bench, spoil, code
):
    batch_id = bench.create(as_jsonl(map(a_line, ids(30))), window=8)
    bench.tick()
    bench.serve(5)
    spoil(bench)

    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.FAILED
    assert [fault.code for fault in batch.progress.faults] == [code]
    output, error = bench.lines(batch.output_file), bench.lines(batch.error_file)
    assert len(output) == batch.progress.completed >= 5
    assert {line["error"]["code"] for line in error} <= {"batch_failed"}
    assert not bench.batches.live(batch_id)
    assert bench.queue.claim(generate_queue(MODEL), "engine", 10) == []


def test_a_batch_whose_lines_are_all_sent_needs_its_input_no_more(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(4))))
    bench.tick()
    lose_input(bench)

    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.COMPLETED
    bench.check_conserved(batch, ids(4))


def test_a_cancelled_batch_whose_input_is_lost_ends_cancelled(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(30))), window=4)
    bench.tick()
    lose_input(bench)

    bench.batches.cancel(batch_id, DEFAULT_TENANT)
    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.CANCELLED
    assert batch.progress.faults[0].code == "input_file_missing"
