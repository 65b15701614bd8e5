"""Deliveries to registered endpoints: what was sent, what came of it, and sending it again.

DeliveryLog is the verbs over Redis; one verb that writes is one script (scripts/endpoint_*.lua).
The deliveries themselves are jobs of WEBHOOK_QUEUE (see outbox.py); here is what their owner sees
and what their attempts say of the endpoint. Knows no HTTP. Verbs raise StoreUnavailable.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import redis

from queueing import keys
from queueing.clock import Clock
from queueing.endpoints import EventType
from queueing.job import JobState, new_id
from queueing.pages import Page, PageQuery, read_page
from queueing.queue import QueueLimits
from queueing.store import Script, translated_errors

_REPLAYS_AT_ONCE = 1_000
_SAMPLE_PREFIXES = {"job": "job_", "batch": "batch_", "response": "resp_"}


class AttemptEnd(StrEnum):
    """What an attempt means for its delivery; a test says nothing of its endpoint."""

    DELIVERED = "delivered"
    FAILED = "failed"
    GIVEN_UP = "given_up"
    TESTED = "tested"


class ReplayAnswer(StrEnum):
    """What became of the wish to send a delivery again."""

    REPLAYED = "ok"
    UNKNOWN = "unknown"
    STILL_LIVE = "live"
    REPLAYED_BEFORE = "replayed"


@dataclass(frozen=True, slots=True)
class AttemptNote:
    """One attempt as the owner sees it; `result` is a status class or how the connection failed."""

    result: str
    status: int | None
    duration_ms: int
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from an attempt: for its delivery, and for its endpoint.

    A `disable_reason` disables the endpoint; `silence_s` is how long it asked to be left alone.
    """

    end: AttemptEnd
    disable_reason: str = ""
    silence_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A delivery and its newest attempts. Instants are seconds of the store's clock."""

    id: str
    event_id: str
    event_type: str
    state: JobState
    created_s: float
    finished_s: float | None
    replayed_as: str | None
    attempts: tuple[AttemptNote, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer to a replay; `delivery_id` is the new one's when there is one."""

    answer: ReplayAnswer
    delivery_id: str


class DeliveryLog:
    """The deliveries of one installation. Thread-safe: it holds nothing but the client."""

    def __init__(
        self,
        client: "redis.Redis",
        limits: QueueLimits | None = None,
        *,
        prefix: str = "{pm}:",
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._limits_json = (limits or QueueLimits()).as_json()
        self._attempt = Script(client, "endpoint_attempt", prefix, allow_oom=True)
        self._test = Script(client, "endpoint_test", prefix, allow_oom=False)
        self._replay = Script(client, "endpoint_replay", prefix, allow_oom=False)

    def note(
        self, endpoint_id: str, delivery_id: str, attempt: AttemptNote, verdict: Verdict
    ) -> bool:
        """Write an attempt down; True when it disabled the endpoint."""
        fields = {"result": attempt.result, "duration_ms": attempt.duration_ms}
        if attempt.status is not None:
            fields["status"] = attempt.status
        reply = self._attempt(
            *self._head(),
            endpoint_id,
            delivery_id,
            json.dumps(fields),
            verdict.end.value,
            verdict.disable_reason,
            round(verdict.silence_s * 1000),
        )
        return bool(reply == "disabled")

    def test(self, endpoint_id: str, tenant: str, event_type: EventType) -> str | None:
        """Queue a sample event; return the delivery's id, None when there is no such endpoint."""
        delivery_id, event_id = new_id("dlv_"), new_id("evt_")
        object_id = new_id(_SAMPLE_PREFIXES[event_type.partition(".")[0]])
        args = (endpoint_id, tenant, delivery_id, event_id, event_type.value, object_id)
        return delivery_id if self._test(*self._head(), *args) else None

    def get(self, endpoint_id: str, delivery_id: str) -> DeliveryRecord | None:
        """Return a delivery to this endpoint; the caller has checked whose endpoint it is."""
        return self._fetch([delivery_id], endpoint_id)[0]

    def page(
        self, endpoint_id: str, query: PageQuery, states: Sequence[JobState] = tuple(JobState)
    ) -> Page[DeliveryRecord]:
        """Return some of an endpoint's deliveries in these states, newest first."""
        index = keys.DELIVERIES.of(self._prefix, id=endpoint_id)

        def fetch(ids: Sequence[str]) -> list[DeliveryRecord | None]:
            found = self._fetch(ids, endpoint_id)
            return [record if record and record.state in states else None for record in found]

        return read_page(self._client, index, query, fetch)

    def replay(self, endpoint_id: str, tenant: str, delivery_id: str) -> Replay:
        """Send a delivery that ended again, once."""
        new = new_id("dlv_")
        answer = ReplayAnswer(self._replay(*self._head(), endpoint_id, tenant, delivery_id, new))
        return Replay(answer, new)

    def replay_failed(self, endpoint_id: str, tenant: str) -> list[str]:
        """Send everything again that failed and was not replayed; return the new ids."""
        query = PageQuery(limit=_REPLAYS_AT_ONCE, ascending=True)
        failed = self.page(endpoint_id, query, states=(JobState.FAILED,)).items
        replays = [
            self.replay(endpoint_id, tenant, record.id)
            for record in failed
            if record.replayed_as is None
        ]
        return [replay.delivery_id for replay in replays if replay.answer is ReplayAnswer.REPLAYED]

    def _head(self) -> tuple[str, str]:
        return (str(self._clock.now_ms()) if self._clock else "", self._limits_json)

    def _fetch(self, ids: Sequence[str], endpoint_id: str) -> list[DeliveryRecord | None]:
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for delivery_id in ids:
                pipeline.hgetall(keys.JOB.of(self._prefix, id=delivery_id))
                pipeline.lrange(keys.ATTEMPTS.of(self._prefix, id=delivery_id), 0, -1)
            found = pipeline.execute()
        return [
            _record_of(delivery_id, fields, attempts)
            if fields.get("endpoint") == endpoint_id
            else None
            for delivery_id, fields, attempts in zip(ids, found[0::2], found[1::2], strict=True)
        ]


def _record_of(delivery_id: str, fields: dict[str, str], attempts: list[str]) -> DeliveryRecord:
    return DeliveryRecord(
        id=delivery_id,
        event_id=fields["event_id"],
        event_type=fields["event"],
        state=JobState(fields["state"]),
        created_s=int(fields["arrival_ms"]) / 1000,
        finished_s=int(fields["finished_ms"]) / 1000 if "finished_ms" in fields else None,
        replayed_as=fields.get("replayed_as"),
        attempts=tuple(_note_of(attempt) for attempt in attempts),
    )


def _note_of(text: str) -> AttemptNote:
    fields = json.loads(text)
    return AttemptNote(
        result=fields["result"],
        status=fields.get("status"),
        duration_ms=fields["duration_ms"],
        at_s=fields["at_ms"] / 1000,
    )
