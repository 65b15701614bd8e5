"""A batch from upload to both files with the unmodified openai package, on a real API and queue."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import openai
import pytest
from openai.types import Batch, FileObject
from prometheus_client import CollectorRegistry

from engine.registry import Provenance, write_manifest
from engine.tokenizer import Tokenizer
from ops.metrics import BatchMetrics
from queueing import wire
from queueing.admission import Admission
from queueing.batch_store import BatchStore
from queueing.files import FileStore
from queueing.job import (
    BATCH_QUEUE,
    Choice,
    JobResult,
    JobState,
    Lease,
    Outcome,
    Usage,
    generate_queue,
)
from queueing.queue import JobQueue
from queueing.served_model import ServedModel, ServedModels
from queueing.store import connect
from queueing.tenants import Tenant
from tests.support.api_server import ApiServer
from tests.support.batch_bench import ENDPOINT, a_line, answer_to, as_jsonl
from tests.support.cpu_worker import cpu_worker
from tests.support.tiny_model import write_tiny_model
from workers.batch_lines import BatchLines, LinePolicy
from workers.batches import BatchTicker

API_KEY = "pm_test-key"
MODEL = "tiny"
GOOD = [f"line-{number}" for number in range(47)]


@dataclass(frozen=True, slots=True)
class Stack:
    """A client of a running API; `data_dir` and `url` are what its workers need too."""

    client: openai.OpenAI
    queue: JobQueue
    ticker: BatchTicker
    redis_url: str

    def ticking(self) -> AbstractContextManager[None]:
        """Run a CPU worker's batches until the block ends."""
        return cpu_worker(self.redis_url, self.queue, BATCH_QUEUE, self.tick, slots=2)

    def answering(self) -> AbstractContextManager[None]:
        """Run an engine that is a pure function until the block ends."""
        queue_name = generate_queue(MODEL)
        return cpu_worker(self.redis_url, self.queue, queue_name, self.answer, slots=4)

    def tick(self, lease: Lease, _request: str) -> None:
        self.ticker.tick(lease)

    def answer(self, lease: Lease, request: str) -> None:
        messages = wire.decode_request(request).messages
        assert messages is not None
        text = answer_to(messages[-1]["content"])
        choices = (Choice(0, text, "stop"),)
        result = JobResult(JobState.COMPLETED, choices, usage=Usage(5, 7), model=MODEL)
        self.queue.finish(Outcome(lease, result))

    def wait_for_end(self, batch_id: str) -> Batch:
        """Poll like a user."""
        until_s = monotonic() + 30
        while monotonic() < until_s:
            batch = self.client.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            sleep(0.05)
        raise AssertionError(f"the batch did not end: {batch}")

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        return [json.loads(line) for line in self.client.files.content(file_id).text.splitlines()]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / MODEL)
    write_manifest(folder, Provenance(name=MODEL))
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("data")
    return folder


@pytest.fixture(scope="module")
def server(module_redis_url, model_dir, data_dir) -> Iterator[ApiServer]:
    """Run one API for all tests here: it keeps nothing that is not in Redis or on disk."""
    settings = {
        "redis_url": module_redis_url,
        "models": f'["{model_dir}"]',
        "data_dir": str(data_dir),
        "api_key": API_KEY,
        "batch_window": "16",
    }
    server = ApiServer(data_dir / "api.log", settings)
    server.start()
    yield server
    server.kill9()


@pytest.fixture
def stack(server, redis_url, model_dir, data_dir) -> Iterator[Stack]:
    connection = connect(redis_url)
    queue = JobQueue(connection)
    models = ServedModels([ServedModel(MODEL, 512, 16, Tokenizer.load(model_dir))])
    batches, files = BatchStore(connection), FileStore(connection, data_dir)
    lines = BatchLines(
        files, batches, Admission(connection), lambda name: LinePolicy(Tenant(name), models)
    )
    ticker = BatchTicker(queue, batches, files, lines, BatchMetrics(CollectorRegistry()))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=API_KEY, max_retries=0) as client:
        yield Stack(client, queue, ticker, redis_url)
    connection.close()


def test_fifty_lines_three_of_them_bad_go_from_upload_to_both_files(stack):
    bad = [
        a_line("unknown", model="gpt-none"),
        a_line("long", "word " * 2_000),
        a_line("parameter", temperature=9),
    ]
    content = as_jsonl([*map(a_line, GOOD[:20]), *bad, *map(a_line, GOOD[20:])])

    with stack.ticking(), stack.answering():
        file = stack.client.files.create(file=("in.jsonl", content), purpose="batch")
        created = stack.client.batches.create(
            input_file_id=file.id,
            endpoint=ENDPOINT,
            completion_window="24h",
            metadata={"run": "first"},
        )
        batch = stack.wait_for_end(created.id)

    output, error = stack.lines(batch.output_file_id), stack.lines(batch.error_file_id)
    assert batch.status == "completed"
    assert batch.metadata == {"run": "first"}
    assert batch.request_counts.model_dump() == {"total": 50, "completed": 47, "failed": 3}
    assert batch.usage.total_tokens == 47 * 12
    assert {line["custom_id"]: text_of(line) for line in output} == {
        custom_id: answer_to(f"say {custom_id}") for custom_id in GOOD
    }
    assert {line["custom_id"]: code_of(line) for line in error} == {
        "unknown": (404, "model_not_found"),
        "long": (400, "context_length_exceeded"),
        "parameter": (400, "invalid_request"),
    }


def test_each_output_body_is_a_chat_completion_to_the_client(stack):
    with stack.ticking(), stack.answering():
        batch = run(stack, as_jsonl([a_line("only")]))

    (line,) = stack.lines(batch.output_file_id)
    completion = openai.types.chat.ChatCompletion.model_validate_json(
        json.dumps(line["response"]["body"]), strict=True
    )
    assert completion.choices[0].message.content == answer_to("say only")


def test_a_file_that_is_no_batch_fails_with_line_numbers(stack):
    content = as_jsonl([a_line("a")]) + b"{\n" + as_jsonl([a_line("a")])

    with stack.ticking(), stack.answering():
        batch = run(stack, content)

    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(fault.code, fault.line) for fault in batch.errors.data or []] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
    ]
    assert batch.output_file_id is None
    assert stack.client.files.delete(batch.input_file_id).deleted


def test_a_cancelled_batch_accounts_for_every_line(stack):
    file = stack.client.files.create(
        file=("in.jsonl", as_jsonl(map(a_line, GOOD))), purpose="batch"
    )
    batch = stack.client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )

    with stack.ticking(), stack.answering():
        assert stack.client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        batch = stack.wait_for_end(batch.id)

    lines = stack.lines(batch.output_file_id) + stack.lines(batch.error_file_id)
    assert batch.status == "cancelled"
    assert sorted(line["custom_id"] for line in lines) == sorted(GOOD)


def test_a_shorter_window_goes_through_extra_body(stack):
    file = stack.client.files.create(
        file=("in.jsonl", as_jsonl(map(a_line, GOOD))), purpose="batch"
    )
    batch = stack.client.batches.create(
        input_file_id=file.id,
        endpoint=ENDPOINT,
        completion_window="24h",
        extra_body={"completion_window": "1s"},
    )
    assert batch.expires_at - batch.created_at <= 2

    with stack.ticking():
        batch = stack.wait_for_end(batch.id)

    assert batch.status == "expired"
    assert {line["error"]["code"] for line in stack.lines(batch.error_file_id)} == {"batch_expired"}
    assert batch.request_counts.failed == 47


def test_files_and_batches_are_paged_through_by_the_client(stack):
    files = [
        stack.client.files.create(file=(f"{number}.jsonl", b"{}"), purpose="batch").id
        for number in range(5)
    ]
    batches = [
        stack.client.batches.create(
            input_file_id=file, endpoint=ENDPOINT, completion_window="24h"
        ).id
        for file in files
    ]

    assert {file.id for file in stack.client.files.list(limit=2)} == set(files)
    assert {batch.id for batch in stack.client.batches.list(limit=2)} == set(batches)


def test_what_the_api_says_is_strictly_what_the_client_expects(stack):
    file = stack.client.files.with_raw_response.create(
        file=("in.jsonl", as_jsonl([a_line("a")])), purpose="batch"
    )
    file_object = FileObject.model_validate_json(file.text, strict=True)
    batch = stack.client.batches.with_raw_response.create(
        input_file_id=file_object.id, endpoint=ENDPOINT, completion_window="24h"
    )

    assert Batch.model_validate_json(batch.text, strict=True).status == "validating"


def test_errors_are_the_clients_own_classes(stack):
    with pytest.raises(openai.NotFoundError):
        stack.client.files.retrieve("file-" + "0" * 22)
    with pytest.raises(openai.NotFoundError):
        stack.client.batches.retrieve("batch_" + "0" * 22)
    with pytest.raises(openai.BadRequestError, match="endpoint must be"):
        stack.client.batches.create(
            input_file_id="file-" + "0" * 22,
            endpoint="/v1/moderations",
            completion_window="24h",
        )


def run(stack: Stack, content: bytes) -> Batch:
    file = stack.client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = stack.client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    return stack.wait_for_end(batch.id)


def text_of(line: dict[str, Any]) -> str:
    text: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return text


def code_of(line: dict[str, Any]) -> tuple[int, str]:
    return line["response"]["status_code"], line["response"]["body"]["error"]["code"]
