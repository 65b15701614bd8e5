"""The client's ledger: what was acknowledged, and what has to come of it.

A job is written down after its acknowledgement and never before, so that what is missing at the end
was lost. Knows the queue from outside only.
"""

from dataclasses import dataclass, field
from typing import Any

import redis

from queueing.job import Job, JobRecord, JobState
from queueing.queue import JobQueue
from queueing.wire import GenerateRequest, encode_request
from tests.support.audit import faults_in, stored_jobs
from tests.support.fake_engine import expected_text
from tests.support.jobs import MODEL, QUEUE, TENANT, a_job


def a_prompt_job(prompt: str, max_tokens: int, **changes: Any) -> Job:
    """Make a job for the fake model."""
    request = GenerateRequest(model=MODEL, max_tokens=max_tokens, prompt=prompt)
    cost = len(prompt) + max_tokens
    return a_job(request=encode_request(request), cost=cost, **changes)


@dataclass(frozen=True, slots=True)
class Entry:
    """One acknowledged job: its right text, and the states that are right for it."""

    text: str
    states: frozenset[JobState]

    def fits(self, record: JobRecord) -> bool:
        """Say whether this is a right end for the job."""
        if record.state is not JobState.COMPLETED or record.result is None:
            return record.state in self.states
        return record.state in self.states and record.result.choices[0].text == self.text


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ledger and the store disagree about; a good run has an empty one."""

    lost: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    double: int = 0
    orphans: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


ALL_IS_WELL = Verdict()


@dataclass(slots=True)
class Ledger:
    """What the client knows."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def submit(
        self, queue: JobQueue, prompt: str, max_tokens: int, *states: JobState, **changes: Any
    ) -> str:
        """Enqueue a job and write it down; it has to complete unless other states are named."""
        job = a_prompt_job(prompt, max_tokens, **changes)
        queue.enqueue(job)
        self.note(job.id, prompt, max_tokens, *states)
        return job.id

    def note(self, job_id: str, prompt: str, max_tokens: int, *states: JobState) -> None:
        """Write an acknowledged job down."""
        allowed = frozenset(states or (JobState.COMPLETED,))
        self.entries[job_id] = Entry(expected_text(prompt, max_tokens), allowed)

    def check(self, queue: JobQueue, client: "redis.Redis") -> Verdict:
        """Compare with the store, once everything should have ended."""
        records = {job_id: queue.get(job_id, TENANT) for job_id in self.entries}
        stored = [job for job in stored_jobs(client) if job.fields["queue"] == QUEUE]
        num_completed = sum(job.state is JobState.COMPLETED for job in stored)
        return Verdict(
            lost=tuple(job_id for job_id, record in records.items() if record is None),
            wrong=tuple(
                f"{job_id} {record.state} after {record.losses} losses"
                for job_id, record in records.items()
                if record is not None and not self.entries[job_id].fits(record)
            ),
            double=queue.totals(QUEUE).get("completed", 0) - num_completed,
            orphans=tuple(job.id for job in stored if not job.state.is_terminal),
            faults=tuple(faults_in(client)),
        )
