"""Audit: whether what lies in Redis is a state the queue can be in. Reads keys, never writes.

The laws: a live job is in exactly one place and an ended one in none; a result is of the newest
claim; the lists of one tenant add
up to the lists of all; what is said to be held of bytes and tokens is what the live jobs hold;
nobody is remembered without a reason.
"""

from collections import Counter
from dataclasses import dataclass

import redis

from queueing import keys
from queueing.job import JobState, Priority

PREFIX = "{pm}:"


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job's record as it lies there."""

    id: str
    fields: dict[str, str]

    @property
    def state(self) -> JobState:
        return JobState(self.fields["state"])

    @property
    def priority(self) -> str:
        return self.fields["priority"]


def faults_in(client: "redis.Redis") -> list[str]:
    """Return what is wrong, in words; nothing when all is well."""
    jobs = stored_jobs(client)
    queues = client.smembers(keys.QUEUES.of(PREFIX))
    return [
        fault
        for queue in sorted(map(str, queues))
        for fault in _QueueAudit(client, queue, jobs).faults()
    ]


def stored_jobs(client: "redis.Redis") -> list[StoredJob]:
    """Return the record of every job there is, live or ended."""
    names = [
        key
        for key in client.scan_iter(f"{PREFIX}job:*", count=10_000)
        if key.count(":") == 2  # not its request or result
    ]
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(name)
    return [
        StoredJob(name.rpartition(":")[2], fields)
        for name, fields in zip(names, pipeline.execute(), strict=True)
    ]


def live_jobs(client: "redis.Redis") -> list[str]:
    """Return the ids of the jobs that have not ended."""
    return [job.id for job in stored_jobs(client) if not job.state.is_terminal]


class _QueueAudit:
    def __init__(self, client: "redis.Redis", queue: str, jobs: list[StoredJob]) -> None:
        self._client = client
        self._queue = queue
        self._jobs = {job.id: job for job in jobs if job.fields["queue"] == queue}

    def faults(self) -> list[str]:
        checks = (
            self._places,
            self._holders,
            self._tenants,
            self._deadlines,
            self._load,
            self._remembered,
        )
        return [f"{self._queue}: {fault}" for check in checks for fault in check()]

    def _members(self, family: keys.Key, **parts: str) -> list[str]:
        key = family.of(PREFIX, queue=self._queue, **parts)
        return [str(member) for member in self._client.zrange(key, 0, -1)]

    def _places(self) -> list[str]:
        places: Counter[tuple[str, str]] = Counter()
        for priority in Priority:
            for job_id in self._members(keys.READY, priority=priority.value):
                places[job_id, f"ready {priority.value}"] += 1
        places.update((job_id, "later") for job_id in self._members(keys.LATER))
        places.update((job_id, "leased") for job_id in self._members(keys.LEASES))
        faults = [
            f"{job_id} is {place} and unknown"
            for job_id, place in places
            if job_id not in self._jobs
        ]
        for job in self._jobs.values():
            found = sorted(place for job_id, place in places if job_id == job.id)
            allowed = {
                JobState.QUEUED: ([f"ready {job.priority}"], ["later"]),
                JobState.RUNNING: (["leased"],),
            }.get(job.state, ([],))
            if found not in allowed:
                faults.append(f"{job.id} is {job.state} and in {found}")
        return faults

    def _holders(self) -> list[str]:
        return [
            f"{job.id} was ended by claim {job.fields['finished_fence']} of {job.fields['fence']}"
            for job in self._jobs.values()
            if job.fields.get("finished_fence", job.fields["fence"]) != job.fields["fence"]
        ]

    def _tenants(self) -> list[str]:
        faults = []
        for priority in Priority:
            ready = self._members(keys.READY, priority=priority.value)
            by_tenant = Counter(
                self._jobs[job_id].fields["tenant"] for job_id in ready if job_id in self._jobs
            )
            listed = self._members(keys.TENANTS, priority=priority.value)
            if sorted(listed) != sorted(by_tenant):
                faults.append(f"{priority}: tenants {listed} are listed, {sorted(by_tenant)} wait")
            for tenant, count in by_tenant.items():
                own = self._members(keys.TENANT_READY, priority=priority.value, tenant=tenant)
                if len(own) != count:
                    faults.append(f"{priority}: {tenant} has {count} ready and {len(own)} listed")
        return faults

    def _deadlines(self) -> list[str]:
        listed = set(self._members(keys.DEADLINES))
        expected = {
            job.id
            for job in self._jobs.values()
            if job.state is JobState.QUEUED and "deadline_ms" in job.fields
        }
        return [f"deadlines of {sorted(listed ^ expected)} are wrong"] if listed != expected else []

    def _load(self) -> list[str]:
        fields = self._client.hgetall(keys.LOAD.of(PREFIX, queue=self._queue))
        load = {str(name): float(value) for name, value in fields.items()}
        live = [job for job in self._jobs.values() if not job.state.is_terminal]
        held = {"bytes": sum(int(job.fields["bytes"]) for job in live)}
        for priority in Priority:
            costs = [int(job.fields["cost"]) for job in live if job.priority == priority.value]
            held[f"cost:{priority.value}"] = sum(costs)
        return [
            f"{name} is {load.get(name, 0)}, live jobs hold {value}"
            for name, value in held.items()
            if load.get(name, 0) != value
        ]

    def _remembered(self) -> list[str]:
        return [
            f"{priority}: tenants are remembered although nobody waits"
            for priority in Priority
            if not self._members(keys.TENANTS, priority=priority.value)
            and self._members(keys.SERVED, priority=priority.value)
        ]
