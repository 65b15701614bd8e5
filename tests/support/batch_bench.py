"""A batch's whole surroundings on a real server: a user who uploads, a ticker, an engine worker.

The engine's worker is a pure function of the prompt and counts how often each prompt was run. Time
stands still until `settle` finds nothing to do.
"""

import json
import struct
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import redis
from prometheus_client import CollectorRegistry

from ops.metrics import BatchMetrics
from queueing import wire
from queueing.admission import Admission
from queueing.batch import Batch, NewBatch
from queueing.batch_store import BatchStore
from queueing.clock import ManualClock
from queueing.errors import FailureCode, StaleLease
from queueing.files import FileLabel, FilePurpose, FileStore
from queueing.job import (
    BATCH_QUEUE,
    DEFAULT_TENANT,
    Choice,
    Claim,
    JobKind,
    JobResult,
    JobState,
    Lease,
    Outcome,
    Usage,
    generate_queue,
    new_id,
)
from queueing.queue import JobQueue, QueueLimits
from queueing.served_model import ServedModel, ServedModels
from queueing.tenants import Tenant, Tier
from workers.batch_lines import BatchLines, LinePolicy, TickLimits
from workers.batches import BatchTicker

ENDPOINT: Final = "/v1/chat/completions"
MODEL = "tiny"
OTHER_MODEL = "other"
CONTEXT = 64


class WordEncoder:
    """One token a word."""

    vocab_size = 1_000

    def encode(self, text: str) -> list[int]:
        return list(range(len(text.split())))

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode(" ".join(message["content"] for message in messages))


TENANT = Tenant(DEFAULT_TENANT, Tier.PREMIUM)
WEIGHT = TENANT.tier.weight
MODELS = ServedModels(
    ServedModel(name, CONTEXT, default_max_tokens=16, encoder=WordEncoder())
    for name in (MODEL, OTHER_MODEL)
)


def a_line(
    custom_id: str, prompt: str | None = None, *, url: str = ENDPOINT, **body: Any
) -> dict[str, Any]:
    """Return a good line; `body` replaces fields of its body."""
    asked = _asked(url, prompt or f"say {custom_id}")
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": url,
        "body": {"model": MODEL} | asked | body,
    }


def _asked(url: str, prompt: str) -> dict[str, Any]:
    match url:
        case "/v1/completions":
            return {"prompt": prompt}
        case "/v1/responses" | "/v1/embeddings":
            return {"input": prompt}
        case _:
            return {"messages": [{"role": "user", "content": prompt}]}


def text_of(body: dict[str, Any]) -> str:
    """Return the text of an answer, whichever endpoint's it is."""
    text: str
    match body["object"]:
        case "text_completion":
            text = body["choices"][0]["text"]
        case "response":
            text = body["output"][0]["content"][0]["text"]
        case _:
            text = body["choices"][0]["message"]["content"]
    return text


def as_jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class BatchBench:
    """Everything a batch needs, with `client` for the parts that are not under test."""

    def __init__(
        self, client: "redis.Redis", data_dir: Path, limits: QueueLimits | None = None
    ) -> None:
        self.client = client
        self.data_dir = data_dir
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.metrics = BatchMetrics(self.registry)
        self.limits = limits or QueueLimits()
        self.queue = JobQueue(client, self.limits, clock=self.clock)
        self.batches = BatchStore(client, self.limits, clock=self.clock)
        self.files = FileStore(client, data_dir, self.limits, clock=self.clock)
        self.admission = Admission(client, clock=self.clock)
        self.ticker = self.make_ticker(client)
        self.tenant = TENANT
        self.num_runs: Counter[str] = Counter()

    def make_ticker(self, client: "redis.Redis", limits: TickLimits | None = None) -> BatchTicker:
        """Return a ticker that speaks to the store through another client."""
        limits = limits or TickLimits(chunk_lines=4)
        batches = BatchStore(client, self.limits, clock=self.clock)
        files = FileStore(client, self.data_dir, self.limits, clock=self.clock)
        admission = Admission(client, clock=self.clock)
        lines = BatchLines(
            files, batches, admission, lambda _tenant: LinePolicy(self.tenant, MODELS), limits
        )
        queue = JobQueue(client, self.limits, clock=self.clock)
        return BatchTicker(queue, batches, files, lines, self.metrics, limits)

    def upload(self, content: bytes, purpose: FilePurpose = FilePurpose.BATCH) -> str:
        with self.files.draft() as draft:
            draft.write(content)
            label = FileLabel("lines.jsonl", purpose)
            return self.files.publish(draft, label, DEFAULT_TENANT).id

    def create(
        self,
        content: bytes,
        *,
        window: int = 8,
        window_s: int = 86_400,
        endpoint: str = ENDPOINT,
    ) -> str:
        """Upload a file and make a batch of it."""
        return self.batches.create(
            NewBatch(
                id=new_id("batch_"),
                tenant=DEFAULT_TENANT,
                input_file=self.upload(content),
                endpoint=endpoint,
                completion_window="24h",
                window_s=window_s,
                window=window,
            )
        )

    def claim_tick(self) -> Lease | None:
        claims = self.queue.claim(BATCH_QUEUE, "cpu", 1)
        return claims[0].lease if claims else None

    def tick(self) -> bool:
        """Run one tick that is due; False when none is."""
        lease = self.claim_tick()
        if lease is None:
            return False
        self.ticker.tick(lease)
        return True

    def serve(self, limit: int = 4) -> int:
        """Run some queued prompts; return how many."""
        claims = self.queue.claim(generate_queue(MODEL), "engine", limit)
        for claim in claims:
            self.run(claim)
        return len(claims)

    def run(self, claim: Claim) -> None:
        """Answer one prompt; a prompt that says so fails instead."""
        if claim.kind is JobKind.EMBED:
            self._embed(claim)
            return
        request = wire.decode_request(claim.request)
        prompt = request.prompt or (request.messages or ())[-1]["content"]
        self.num_runs[prompt] += 1
        if prompt.startswith("fail"):
            result = JobResult.failure(JobState.FAILED, FailureCode.ENGINE_ERROR, "it broke")
        else:
            choice = Choice(0, answer_to(prompt), "stop")
            usage = Usage(prompt_tokens=2, completion_tokens=3)
            result = JobResult(JobState.COMPLETED, (choice,), usage=usage, model=MODEL)
        self.queue.finish(Outcome(claim.lease, result))

    def _embed(self, claim: Claim) -> None:
        prompt = wire.decode_embed_request(claim.request).prompt
        assert prompt is not None, "lines of tests have words"
        self.num_runs[prompt] += 1
        usage = Usage(prompt_tokens=2, completion_tokens=0)
        vector = b64encode(vector_to(prompt)).decode()
        result = JobResult(JobState.COMPLETED, vector=vector, usage=usage, model=MODEL)
        self.queue.finish(Outcome(claim.lease, result))

    def settle(self, batch_id: str) -> Batch:
        """Let worker and ticker run until the batch has ended."""
        for _ in range(10_000):
            batch = self.read(batch_id)
            if batch.status.is_terminal:
                return batch
            if not self.tick() and not self.serve():
                self.clock.advance(ms=1_000)
        raise AssertionError(f"the batch did not end: {self.read(batch_id)}")

    def read(self, batch_id: str) -> Batch:
        batch = self.batches.read(batch_id)
        assert batch is not None
        return batch

    def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return a file's lines; none when there is no file."""
        if file_id is None:
            return []
        assert self.files.get(file_id, DEFAULT_TENANT) is not None, "the file is not known"
        with self.files.open(file_id) as stream:
            return [json.loads(line) for line in stream.read().splitlines()]

    def check_conserved(self, batch: Batch, custom_ids: Sequence[str]) -> None:
        """Each line is in one file, once; the counts agree; nothing is left behind."""
        output, error = self.lines(batch.output_file), self.lines(batch.error_file)
        assert sorted(line["custom_id"] for line in output + error) == sorted(custom_ids)
        assert all(line["response"]["status_code"] == 200 for line in output)
        for line in output:
            assert text_of(line["response"]["body"]) == answer_to(f"say {line['custom_id']}")
        progress = batch.progress
        assert (progress.completed, progress.failed) == (len(output), len(error))
        assert progress.total == len(custom_ids)
        assert progress.usage.completion_tokens == 3 * len(output)
        assert list(self.client.scan_iter("{pm}:job:job_*")) == []
        assert self.client.exists(f"{{pm}}:batch:{batch.id}:live") == 0
        assert self.client.exists(f"{{pm}}:batch:{batch.id}:ended") == 0


def vector_to(prompt: str) -> bytes:
    """Return what is made of an input, as float32 numbers."""
    return struct.pack("<3f", len(prompt), 0.5, -0.25)


def answer_to(prompt: str) -> str:
    return prompt.upper()


def tick_until_stale(ticker: BatchTicker, lease: Lease) -> bool:
    """Run a tick; True when it was refused because somebody else had taken over."""
    try:
        ticker.tick(lease)
    except StaleLease:
        return True
    return False
