"""A cluster of real processes for fault tests: a server with its own folder, workers, an observer.

Owns every process it started and ends no other. Workers run the fake model; all else is real.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from ops.settings import Settings
from queueing.errors import StoreUnavailable
from queueing.job import JobState
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from tests.support.jobs import QUEUE
from tests.support.ledger import Ledger
from tests.support.load import amount
from tests.support.server import RedisServer

LEASE_S = 1.5
RENEW_S = 0.5
_REPOSITORY = Path(__file__).resolve().parents[2]
_STOP_LIMIT_S = 20.0
_POLL_S = 0.02


class WorkerProcess:
    """One process of a cluster: a worker, or whatever else its command starts."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=_REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """What the process has printed."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """How the process ended, negative for a signal; None while it runs."""
        return self._process.poll()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log lines of one event, oldest first."""
        lines = (line for line in self.log.splitlines() if line.startswith("{"))
        return [line for line in map(json.loads, lines) if line["event"] == name]

    def signal_family(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, if it still runs."""
        if self.is_running:
            os.killpg(self.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        if self.is_running:
            self._process.send_signal(number)

    def kill9(self) -> None:
        """End the process and its children as a crash does."""
        self.signal_family(signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        """Return the exit status once the process has ended by itself."""
        return self._process.wait(_STOP_LIMIT_S)


class Cluster:
    """Starts processes on one server, and waits for what they do."""

    def __init__(self, folder: Path, binary: Path, **settings: str | float) -> None:
        self.folder = folder
        self._settings = {"lease_s": LEASE_S, "renew_s": RENEW_S, "slots": 8, **settings}
        self.server = RedisServer(folder / "redis", binary)
        self.server.start()
        self.client = connect(self.server.url)
        # The composition root's own reading, so that test and workers go by the same limits.
        limits = Settings.model_validate(self._settings).queue_limits()
        self.queue = JobQueue(self.client, QueueLimits(**limits))
        self.ledger = Ledger()
        self.workers: list[WorkerProcess] = []

    def start_worker(
        self,
        name: str = "w1",
        *,
        step_ms: float = 2.0,
        redis_url: str | None = None,
        launcher: Sequence[str] = (),
        **settings: str | float,
    ) -> WorkerProcess:
        """Start an engine worker; it claims as soon as it can.

        `launcher` is a command that becomes the one it is given, such as `ip netns exec NAME`.
        """
        named = self._settings | settings | {"redis_url": redis_url or self.server.url}
        environment = {f"PROMPTMILL_{key.upper()}": str(value) for key, value in named.items()}
        command = [*launcher, sys.executable, "-m", "tests.support.fake_worker", name, str(step_ms)]
        worker = WorkerProcess(
            command,
            environment | {"HOME": str(self.folder), "PATH": os.defpath},
            self.folder / f"worker-{len(self.workers)}-{name}.log",
        )
        self.workers.append(worker)
        return worker

    def wait_until(self, condition: Callable[[], object], limit_s: float = 30.0) -> None:
        """Return when the condition holds; a store that is away is asked again."""
        until_s = monotonic() + limit_s * amount(quick=1, soak=20)
        while not self._holds(condition):
            assert monotonic() < until_s, f"not within {limit_s} s:\n{self.describe()}"
            sleep(_POLL_S)

    def wait_until_settled(self, limit_s: float = 40.0) -> None:
        """Return when every acknowledged job has ended."""
        self.wait_until(lambda: self.num_ended() >= len(self.ledger.entries), limit_s)

    def num_ended(self) -> int:
        """Count the jobs that have ended, whichever way."""
        totals = self.queue.totals(QUEUE)
        return sum(totals.get(state.value, 0) for state in JobState if state.is_terminal)

    def num_running(self) -> int:
        """Count the leases."""
        return self.queue.depth(QUEUE).leased

    def drain(self, worker: WorkerProcess) -> int:
        """End a worker the orderly way; return how many KV blocks it could not account for."""
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log[-3_000:]
        (counted,) = worker.events("blocks counted")
        return int(counted["num_lost"])

    def describe(self) -> str:
        """Say what there is to see, for a failure."""
        logs = "\n".join(f"--- {worker.pid}\n{worker.log[-1_500:]}" for worker in self.workers)
        return f"ended {self._safely(self.num_ended)} of {len(self.ledger.entries)}\n{logs}"

    def end_workers(self) -> None:
        """End every worker as a crash does."""
        for worker in self.workers:
            worker.kill9()

    def stop(self) -> None:
        """End every process that was started here."""
        self.end_workers()
        self.client.close()
        self.server.stop()

    def _holds(self, condition: Callable[[], object]) -> bool:
        return bool(self._safely(condition))

    @staticmethod
    def _safely(question: Callable[[], object]) -> object:
        try:
            return question()
        except StoreUnavailable:
            return None
