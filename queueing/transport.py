"""JobQueue spoken as a kombu transport: get = claim, ack = finished, reject = release.

Job queues (is_job_queue) are served by JobQueue's scripts; every other queue (control, replies,
events) stays kombu's stock Redis transport. Stock redelivery is off: leases do that. Nothing but a
job's id and fence becomes a message, so prompts never reach Celery, its events or its logs.

A channel with room blocks on the bells of its queues and on its worker's inbox; a full one blocks
on the bells of work more urgent than what it holds, or on the inbox only. When a slot frees, the
channel claims at once instead of waiting for a bell.

The worker hands its Intake over in the transport option `intake`; a connection without one (beat,
control commands) can publish and ask, but not consume jobs.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty
from time import monotonic
from typing import Any, Protocol

import redis
from kombu.transport import redis as stock
from kombu.transport import virtual

from queueing.errors import StoreUnavailable
from queueing.job import Claim, Lease, Priority, is_job_queue, task_of_queue
from queueing.queue import ClaimCall, JobQueue

_BELL_TIMEOUT_S = 1  # a claim at least this often reaps, expires and promotes
_GONE = ("timeout", "connection")


@dataclass(frozen=True, slots=True)
class Room:
    """How many jobs a worker takes now, the least urgent priority it takes, and how many jobs it
    holds already.
    """

    limit: int
    at_least: Priority = Priority.BULK
    held: int = 0

    @property
    def listens_to(self) -> Priority | None:
        """The least urgent priority that it has room for; None when there is no room."""
        return self.at_least if self.limit > 0 else None


class Intake(Protocol):
    """The worker's side of claiming: how much it wants, and where claims go. Called by the
    consuming thread.

    `settle` may come from any thread: the message of that lease is done with as far as Celery is
    concerned.
    """

    queue: JobQueue
    worker: str

    def room(self) -> Room:
        """Say how much to claim now."""
        ...

    def call_id(self, queue: str) -> str:
        """Name the next claim from a queue; the name stays until that claim was answered."""
        ...

    def answered(self, queue: str) -> None:
        """Note that the claim was answered."""
        ...

    def reassert(self) -> None:
        """Renew what is held, after a time without the store, lest the next claim take it back."""
        ...

    def accept(self, claim: Claim) -> None:
        """Hold a claim until its task asks for it."""
        ...

    def settle(self, lease: Lease, *, requeue: bool) -> None:
        """Give up a lease that the worker did not finish: hand it back, or end it as revoked."""
        ...

    def cancel(self, job_id: str) -> None:
        """Stop working on a job that was cancelled."""
        ...


class LeaseQoS(stock.QoS):
    """What is delivered and not yet settled.

    How much may be claimed is the intake's business, not a prefetch count.
    """

    channel: "JobChannel"
    _delivered: OrderedDict[str, Any]
    restore_at_shutdown = False

    def can_consume(self) -> bool:
        """Let the channel always listen; a full one listens for urgent work and cancellations."""
        return True

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a message; its lease is the record that survives us."""
        self._delivered[delivery_tag] = message

    def ack(self, delivery_tag: str) -> None:
        """Settle a message whose job ended, or that Celery dropped because it was revoked."""
        self._settle(delivery_tag, requeue=False)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002  kombu's
        """Hand a job back; without requeue its lease runs out and counts as a loss, like any job
        nobody could run.
        """
        if requeue:
            self._settle(delivery_tag, requeue=True)
        else:
            self._delivered.pop(delivery_tag, None)

    def restore_visible(self, *_args: Any, **_options: Any) -> None:
        """Do nothing: claim reaps what outlived its lease."""

    def restore_unacked_once(self, stderr: Any = None) -> None:  # noqa: ARG002  kombu's
        """Do nothing: a closing connection does not end a lease; the worker finishes or releases it
        itself.
        """
        self._on_collect.cancel()  # type: ignore[attr-defined]  # not in the stub

    def _settle(self, delivery_tag: str, *, requeue: bool) -> None:
        message = self._delivered.pop(delivery_tag, None)
        if message is not None and is_job_queue(message.delivery_info["routing_key"]):
            self.channel.settled(message.headers, requeue=requeue)


class JobMessage(virtual.Message):
    """A message that knows its arguments without decoding them, if it is a job's."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **kwargs: Any) -> None:
        super().__init__(payload, channel, **kwargs)
        self._decoded_cache = payload.get("arguments")


class JobChannel(stock.Channel):
    """A stock channel whose job queues are JobQueue's."""

    connection: Any
    connection_errors: tuple[type[Exception], ...]
    Message = JobMessage
    QoS = LeaseQoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._intake: Intake | None = None
        self._listens_to: Priority | None = None
        self._claim_is_due = False
        self._shared_client: redis.Redis | None = None
        super().__init__(*args, **kwargs)

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume from a queue; a job queue needs the worker's intake."""
        if is_job_queue(queue):
            self._intake = self.connection.client.transport_options["intake"]
            with _as_lost_connection():
                self._intake.reassert()
        return super().basic_consume(queue, *args, **kwargs)

    def settled(self, headers: dict[str, Any], *, requeue: bool) -> None:
        """Pass a settled message on and claim again soon. Any thread."""
        assert self._intake is not None, "a delivered job has an intake"
        lease = Lease(headers["id"], headers["queue"], headers["fence"])
        with _as_lost_connection():  # if it is, the lease runs out instead
            self._intake.settle(lease, requeue=requeue)
        self.claim_soon()

    def claim_soon(self) -> None:
        """Have the consuming thread claim once more, however often this is called before it does.

        Any thread.
        """
        loop = self.connection.loop if self.connection is not None else None
        if loop is not None and not self._claim_is_due:
            self._claim_is_due = True
            loop.call_soon(self._claim_again)
            turn_again(loop)

    def _claim_again(self) -> None:
        self._claim_is_due = False
        if self.closed or self.connection is None or self._intake is None:
            return
        self._claim()
        if self._in_poll and self._intake.room().listens_to is not self._listens_to:
            with _as_lost_connection():
                self._intake.queue.wake(self._intake.worker)

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  kombu's
        """Share one client: kombu makes one for each message that is published."""
        if asynchronous:
            return super()._create_client(asynchronous)  # type: ignore[misc]  # not in the stub
        client = self._shared_client
        if client is None or client.connection_pool is not self.pool:  # kombu drops a lost pool
            client = self._shared_client = super()._create_client()  # type: ignore[misc]  # not in the stub
        return client

    # The stock poller calls these two for every channel that consumes.

    def _brpop_start(self, timeout: int | None = None) -> None:
        if self._intake is None:
            super()._brpop_start(timeout)  # type: ignore[misc]  # not in the stub
            return
        queues = [queue for queue in self.active_queues if is_job_queue(queue)]
        self._listens_to = self._intake.room().listens_to
        keys = self._intake.queue.bells(queues, self._intake.worker, self._listens_to)
        self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        self.client.connection.send_command("BRPOP", *keys, timeout or _BELL_TIMEOUT_S)

    def _brpop_read(self, **options: Any) -> bool:
        if self._intake is None:
            return bool(super()._brpop_read(**options))  # type: ignore[misc]  # not in the stub
        try:
            reply = self.client.parse_response(self.client.connection, "BRPOP", **options)
        except self.connection_errors:
            self.client.connection.disconnect()
            raise
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()  # type: ignore[attr-defined]  # not in the stub
        if reply is not None:
            self._read_inbox(_text(reply[1]))
        if self._claim() == 0:
            raise Empty
        return True

    def _read_inbox(self, message: str) -> None:
        verb, _, job_id = message.partition(" ")
        if verb == "cancel":
            assert self._intake is not None, "only a consuming channel has an inbox"
            self._intake.cancel(job_id)

    def _claim(self) -> int:
        assert self._intake is not None, "only a consuming channel claims"
        num_claimed = 0
        for queue in self.active_queues:
            room = self._intake.room()
            if room.limit == 0 or not is_job_queue(queue):
                continue
            try:
                claims = self._intake.queue.claim(
                    queue,
                    self._intake.worker,
                    room.limit,
                    at_least=room.at_least,
                    call=ClaimCall(room.held, self._intake.call_id(queue)),
                )
            except StoreUnavailable as error:
                if error.kind in _GONE:
                    raise redis.ConnectionError(str(error)) from error
                return num_claimed  # it refuses writes: ask again when the bell times out
            self._intake.answered(queue)
            for claim in claims:
                self._intake.accept(claim)
                self.connection._deliver(_message(claim), queue)  # noqa: SLF001  kombu's way to hand over a message
            num_claimed += len(claims)
        return num_claimed

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        if is_job_queue(queue):
            msg = f"{queue} takes jobs from JobQueue.enqueue, not messages"
            raise ValueError(msg)
        super()._put(queue, message, **kwargs)

    def _size(self, queue: str) -> int:
        if self._intake is None or not is_job_queue(queue):
            return int(super()._size(queue))
        depth = self._intake.queue.depth(queue)
        return sum(depth.ready.values()) + depth.later

    def _purge(self, queue: str) -> int:
        if is_job_queue(queue):
            return 0  # an accepted job is never dropped; cancel it
        return int(super()._purge(queue))


@contextmanager
def _as_lost_connection() -> Iterator[None]:
    """Turn StoreUnavailable into what Celery reconnects after; any other would end the worker."""
    try:
        yield
    except StoreUnavailable as error:
        raise redis.ConnectionError(str(error)) from error


def turn_again(loop: Any) -> None:
    """Make kombu's event loop turn once more without waiting.

    What the loop's own thread leaves to be called soon is not looked at before its poll ends, up to
    a second later, unless it is woken like by another thread; and kombu has no public way to.
    """
    waker = loop._waker  # noqa: SLF001
    if waker is not None:
        waker.wake()


class Transport(stock.Transport):
    """The transport that Celery is given by class path, with a redis:// URL."""

    Channel = JobChannel
    brpop_timeout = _BELL_TIMEOUT_S
    # A store without memory refuses what Celery writes at its start: that too is worth waiting for.
    connection_errors = (*stock.Transport.connection_errors, redis.exceptions.OutOfMemoryError)
    loop: Any = None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Remember the loop: kombu forgets which one is current after the first lost connection."""
        self.loop = loop
        super().register_with_event_loop(connection, loop)


_NOTHING_FOLLOWS = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_NOTHING_FOLLOWS_JSON = json.dumps(_NOTHING_FOLLOWS)


def _message(claim: Claim) -> dict[str, Any]:
    """Build a task message of Celery's protocol 2; its only argument is the job's id."""
    lease = claim.lease
    return {
        "arguments": [[lease.job_id], {}, dict(_NOTHING_FOLLOWS)],
        "body": f"[[{json.dumps(lease.job_id)}], {{}}, {_NOTHING_FOLLOWS_JSON}]",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": task_of_queue(lease.queue, claim.kind),
            "id": lease.job_id,
            "root_id": lease.job_id,
            "parent_id": None,
            "group": None,
            "argsrepr": f"('{lease.job_id}',)",
            "kwargsrepr": "{}",
            "retries": claim.losses,
            "queue": lease.queue,
            "fence": lease.fence,
        },
        "properties": {
            "correlation_id": lease.job_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": lease.queue},
            "priority": 0,
            "delivery_tag": lease.tag,
        },
    }


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
