"""OneThreadWorker: engine, serving and delivery of a worker, on the thread of the test."""

import queue

import redis
from prometheus_client import CollectorRegistry

from ops.settings import Settings
from queueing.job import JobRecord
from queueing.queue import JobQueue
from queueing.token_stream import TokenStreams
from tests.support.fake_engine import fake_engine
from tests.support.jobs import MODEL, TENANT
from workers.delivery import Delivery, Ended
from workers.engine_job import EngineJob
from workers.observer import EngineObserver
from workers.serving import Event, ServingLoop
from workers.stream_writer import StreamWriter


class OneThreadWorker:
    """Turns only when it is told to."""

    def __init__(self, client: "redis.Redis", settings: Settings) -> None:
        """Take the store's client; the engine is the made-up one, at no time a step."""
        self.jobs = JobQueue(client)
        self.engine = fake_engine(settings, step_s=0.0)
        self.registry = CollectorRegistry()
        self.ended: list[Ended] = []
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.serving = ServingLoop(self.engine, events, coalesce_s=0.0, idle_wait_s=0.01)
        self.delivery = Delivery(
            self.jobs,
            StreamWriter(TokenStreams(client)),
            events,
            EngineObserver(self.registry, MODEL, "w1", self.engine.capacity),
            abort=self.serving.abort,
            on_finished=lambda _lease: None,
        )
        self.delivery.on_ended(self.ended.extend)

    def join(self, job: EngineJob) -> None:
        """Let a claimed job join."""
        self.delivery.expect(job)
        self.serving.submit(job)

    def turn(self, times: int = 1) -> None:
        """Step and deliver so many times."""
        for _ in range(times):
            self.serving.turn()
            self.delivery.turn(wait_s=0.0)

    def record(self, job: EngineJob) -> JobRecord:
        """Return what the store knows of a job."""
        found = self.jobs.get(job.claim.lease.job_id, TENANT)
        assert found is not None, "it was enqueued"
        return found

    @property
    def num_held_blocks(self) -> int:
        """Count the blocks that sequences hold."""
        self.engine.check_integrity()
        capacity = self.engine.capacity()
        return capacity.total_blocks - capacity.free_blocks
