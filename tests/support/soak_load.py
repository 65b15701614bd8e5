"""The steady load of a soak: jobs of all classes with deadlines, cancels and webhooks, and batches.

Each tenant's thread submits, reads what it submitted until it has ended, and checks each end
against what the model has to say. What is wrong is written down in words; a good run has none.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Event, Thread
from time import monotonic
from typing import Any

from queueing.job import JobState
from tests.support.batch_bench import a_line, as_jsonl
from tests.support.fake_engine import as_prompt, expected_text
from tests.support.jobs import MODEL
from tests.support.soak_client import SoakClient

LINES_IN_BATCH = 20
_READ_AFTER_S = 1.0
_FIRST_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How much one tenant asks for: mean seconds between two jobs, and between two batches."""

    job_s: float
    batch_s: float


@dataclass(frozen=True, slots=True)
class Promised:
    """One acknowledged job: its right text, the states that are right for it, when to read it."""

    text: str
    states: frozenset[str]
    has_webhook: bool
    read_at_s: float


@dataclass(slots=True)
class Account:
    """What a tenant was promised, what came of it, and what is wrong with that."""

    open_jobs: dict[str, Promised] = field(default_factory=dict)
    open_batches: dict[str, dict[str, str]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    num_batches: int = 0
    awaited_webhooks: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        return not self.open_jobs and not self.open_batches


class TenantLoad:
    """One tenant's thread. Its account may be read once it has ended."""

    def __init__(
        self, name: str, client: SoakClient, webhook_url: str, pace: Pace, chance: Random
    ) -> None:
        self.account = Account()
        self._name = name
        self._client = client
        self._webhook_url = webhook_url
        self._pace = pace
        self._chance = chance
        self._number = 0
        self._is_over = Event()
        self._failure: Exception | None = None
        self._thread = Thread(target=self._run, name=f"load of {name}", daemon=True)

    def start(self) -> None:
        """Begin to submit."""
        self._thread.start()

    def stop_submitting(self) -> None:
        """Submit no more; only read what is open until it has ended."""
        self._is_over.set()

    @property
    def has_ended(self) -> bool:
        """Whether everything has ended and was read; raises what its thread met."""
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    @property
    def num_repeats(self) -> Counter[str]:
        """What kept its client from an answer, by kind."""
        return self._client.num_repeats

    def one_of_each(self) -> None:
        """Submit a job with everything and a batch, and read how they end."""
        self._submit_job(self._job_body() | {"webhook_url": self._webhook_url}, is_cancelled=False)
        self._submit_batch()
        until_s = monotonic() + _FIRST_LIMIT_S
        while not self.account.is_settled:
            assert monotonic() < until_s, f"open without a fault: {self.account}"
            self._read_all(by_s=monotonic() + _READ_AFTER_S)
            Event().wait(_READ_AFTER_S / 20)

    def _run(self) -> None:
        try:
            self._submit_until_over()
            while not self.account.is_settled:
                self._read_all(by_s=monotonic())
                Event().wait(_READ_AFTER_S / 2)
            self._delete_files()
        except Exception as error:  # noqa: BLE001  told to the test by `finish`
            self._failure = error

    def _submit_until_over(self) -> None:
        batch_at_s = monotonic()
        while not self._is_over.wait(self._chance.expovariate(1 / self._pace.job_s)):
            self._submit_job(self._job_body(), is_cancelled=self._chance.random() < 0.1)
            if monotonic() >= batch_at_s:
                self._submit_batch()
                batch_at_s = monotonic() + self._pace.batch_s
            self._read_all(by_s=monotonic())

    def _job_body(self) -> dict[str, Any]:
        chance = self._chance
        body: dict[str, Any] = {
            "prompt": self._next_prompt(),
            "max_tokens": chance.randint(1, 40),
            "priority": chance.choice(["realtime", "standard", "bulk"]),
        }
        if chance.random() < 0.2:
            body["deadline_s"] = round(chance.uniform(0.2, 8.0), 3)
        if chance.random() < 0.3:
            body["webhook_url"] = self._webhook_url
        return body

    def _next_prompt(self) -> str:
        self._number += 1
        return f"{self._name} asks {self._number}"

    def _submit_job(self, body: dict[str, Any], *, is_cancelled: bool) -> None:
        made = self._client.make("/v1/jobs", body, key=body["prompt"].replace(" ", "-"))
        states = {JobState.COMPLETED.value}
        if "deadline_s" in body:
            states.add(JobState.EXPIRED.value)
        if is_cancelled:
            states.add(JobState.CANCELLED.value)
            self._client.ask("POST", f"/v1/jobs/{made['id']}/cancel")
        self.account.open_jobs[made["id"]] = Promised(
            expected_text(body["prompt"], body["max_tokens"]),
            frozenset(states),
            "webhook_url" in body,
            monotonic() + _READ_AFTER_S,
        )

    def _submit_batch(self) -> None:
        expected, lines = {}, []
        for _ in range(LINES_IN_BATCH):
            prompt = self._next_prompt()
            custom_id, num_tokens = prompt.replace(" ", "-"), self._chance.randint(1, 20)
            lines.append(a_line(custom_id, prompt, model=MODEL, max_tokens=num_tokens))
            message = {"role": "user", "content": prompt}
            expected[custom_id] = expected_text(as_prompt(message), num_tokens)
        upload = {"file": ("lines.jsonl", as_jsonl(lines))}
        response = self._client.ask("POST", "/v1/files", data={"purpose": "batch"}, files=upload)
        assert response.is_success, response.text
        body = {
            "input_file_id": response.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        made = self._client.make("/v1/batches", body, key=lines[0]["custom_id"])
        self.account.open_batches[made["id"]] = expected
        self.account.num_batches += 1

    def _read_all(self, by_s: float) -> None:
        """Read the jobs that should be read by an instant, and every batch."""
        due = [(name, job) for name, job in self.account.open_jobs.items() if job.read_at_s <= by_s]
        for job_id, promised in due:
            self._read_job(job_id, promised)
        if due or not self.account.open_jobs:
            for batch_id in list(self.account.open_batches):
                self._read_batch(batch_id)

    def _read_job(self, job_id: str, promised: Promised) -> None:
        account = self.account
        response = self._client.ask("GET", f"/v1/jobs/{job_id}")
        if response.status_code != 200:
            account.wrong.append(f"{job_id} is lost: {response.status_code} {response.text}")
            del account.open_jobs[job_id]
            return
        job = response.json()
        if not JobState(job["state"]).is_terminal:
            account.open_jobs[job_id] = Promised(
                promised.text, promised.states, promised.has_webhook, monotonic() + _READ_AFTER_S
            )
            return
        del account.open_jobs[job_id]
        account.ends[job["state"]] += 1
        if promised.has_webhook:
            account.awaited_webhooks.add(f"evt_{job_id.removeprefix('job_')}")
        if job["state"] not in promised.states:
            account.wrong.append(f"{job_id} ended {job['state']}: {job['error']}")
        elif job["state"] == JobState.COMPLETED and job["result"]["text"] != promised.text:
            account.wrong.append(f"{job_id} says {job['result']['text']!r}, not {promised.text!r}")

    def _read_batch(self, batch_id: str) -> None:
        batch = self._client.ask("GET", f"/v1/batches/{batch_id}").json()
        if batch["status"] in ("validating", "in_progress", "finalizing", "cancelling"):
            return
        expected = self.account.open_batches.pop(batch_id)
        answered = self._lines(batch["output_file_id"])
        said = {
            line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"]
            for line in answered
        }
        if batch["status"] != "completed" or len(answered) != len(said) or said != expected:
            self.account.wrong.append(f"{batch_id} is {batch['status']}: {batch}, said {said}")
        self.account.ends["batch line completed"] += len(said)

    def _lines(self, file_id: str | None) -> Sequence[Any]:
        if file_id is None:
            return []
        content = self._client.ask("GET", f"/v1/files/{file_id}/content").content
        return [json.loads(line) for line in content.splitlines()]

    def _delete_files(self) -> None:
        """Delete every file there is, also those of uploads whose answer was lost."""
        while files := self._client.ask("GET", "/v1/files").json()["data"]:
            for file in files:
                self._client.ask("DELETE", f"/v1/files/{file['id']}")
