"""The stack of a soak: each process by its name, started again whenever it has ended.

Every process has a proxy of its own in front of the store, and where the machine can do it a clock
of its own. What strikes them is drawn in soak_faults.py. An elder is a process that nothing kills,
so that it can be seen whether it grows.
"""

import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from tests.support.cluster import WorkerProcess
from tests.support.deliveries import SECRET
from tests.support.live_stack import API_KEY, write_fake_model
from tests.support.proxy import FaultProxy
from tests.support.server import RedisServer, embedded_binary
from tests.support.skewed_clock import SkewedClock, build_skew_library

STEP_MS = 20.0
RECORD_TTL_S = 120


class Kind(StrEnum):
    """What a process is; the value is how a log names it."""

    ENGINE = "engine"
    API = "api"
    CPU = "cpu"
    BEAT = "beat"


@dataclass(frozen=True, slots=True)
class Part:
    """A process of the stack."""

    name: str
    kind: Kind
    is_elder: bool = False


class SoakStack:
    """A store, the processes around it, and what stands between them."""

    def __init__(
        self,
        folder: Path,
        parts: Sequence[Part],
        chance: Random,
        *,
        lease_s: float,
        receiver_port: int,
    ) -> None:
        self.parts = tuple(parts)
        self.lease_s = lease_s
        self.deaths: Counter[str] = Counter()
        self._folder = folder
        self.server = RedisServer(folder / "redis", embedded_binary())
        self.server.start()
        self.client = connect(self.server.url)
        self.queue = JobQueue(self.client, QueueLimits())
        self._model = write_fake_model(folder / "fake")
        self._receiver_port = receiver_port
        self._ports = {part.name: _free_port() for part in parts if part.kind is Kind.API}
        self.proxies = {part.name: FaultProxy(self.server.port, chance) for part in parts}
        library = build_skew_library(folder)
        self.clocks = (
            {part.name: SkewedClock(folder, part.name, library) for part in parts}
            if library
            else {}
        )
        self.processes: dict[str, WorkerProcess] = {}

    @property
    def api_urls(self) -> list[str]:
        """The addresses of all API processes."""
        return [f"http://127.0.0.1:{port}" for port in self._ports.values()]

    @property
    def mortals(self) -> list[Part]:
        """The parts that may be killed."""
        return [part for part in self.parts if not part.is_elder]

    @property
    def elders(self) -> list[Part]:
        """The parts that live as long as the stack."""
        return [part for part in self.parts if part.is_elder]

    def start(self) -> None:
        """Start every process, and wait for none."""
        for proxy in self.proxies.values():
            proxy.start()
        self.supervise()

    def supervise(self) -> None:
        """Start what does not run, as a service manager does; count how each process ended."""
        for part in self.parts:
            process = self.processes.get(part.name)
            if process is not None and process.is_running:
                continue
            if process is not None:
                self.deaths[f"{part.kind} {process.exit_status}"] += 1
            self.processes[part.name] = self._spawn(part)

    def end_in_order(self) -> list[str]:
        """End every process by SIGTERM; return how each ended that did not end well.

        One that a fault had ended may only just have been started, and not listen yet.
        """
        for process in self.processes.values():
            process.signal(signal.SIGTERM)
        ends = {part: self.processes[part.name].wait() for part in self.parts}
        return [
            f"{part.name} {status}"
            for part, status in ends.items()
            if status != 0 and (part.is_elder or status != -signal.SIGTERM)
        ]

    def lost_blocks(self) -> int:
        """Sum up the KV blocks that engine workers, ended in order, could not account for."""
        counted = [
            event
            for part in self.parts
            if part.kind is Kind.ENGINE
            for event in self.processes[part.name].events("blocks counted")
        ]
        assert counted, "no engine worker ended in order"
        return sum(int(event["num_lost"]) for event in counted)

    def stop(self) -> None:
        """End everything that was started here."""
        for process in self.processes.values():
            process.kill9()
        for proxy in self.proxies.values():
            proxy.stop()
        self.client.close()
        self.server.stop()

    def logs(self) -> str:
        """Return the end of every log, for a failure."""
        return "\n".join(
            f"--- {name}\n{process.log[-2_000:]}" for name, process in self.processes.items()
        )

    def _spawn(self, part: Part) -> WorkerProcess:
        settings = {
            "redis_url": self.proxies[part.name].url,
            "lease_s": self.lease_s,
            "renew_s": self.lease_s / 4,
            "max_losses": 1_000,
            "slots": 8,
            "cpu_slots": 8,
            "grace_s": 2.0,
            "result_ttl_s": RECORD_TTL_S,
            "record_ttl_s": RECORD_TTL_S,
            "idempotency_ttl_s": RECORD_TTL_S,
            "api_key": API_KEY,
            "api_threads": 16,
            "api_max_waiters": 8,
            "api_port": self._ports.get(part.name, 0),
            "models": json.dumps([str(self._model)]),
            "data_dir": self._folder / "data",
            "webhook_secret": SECRET.text,
            "webhook_allow_http": "true",
            "webhook_allow_networks": '["127.0.0.0/8"]',
            "webhook_allow_ports": f"[{self._receiver_port}]",
        }
        environment = {f"PROMPTMILL_{name.upper()}": str(text) for name, text in settings.items()}
        environment |= {"HOME": str(self._folder), "PATH": os.defpath}
        if part.name in self.clocks:
            environment |= self.clocks[part.name].environment
        log = self._folder / f"{part.name}.log"
        return WorkerProcess([sys.executable, "-m", *_command(part)], environment, log)


def _command(part: Part) -> list[str]:
    match part.kind:
        case Kind.ENGINE:
            return ["tests.support.fake_worker", part.name, str(STEP_MS)]
        case Kind.API:
            return ["ops.cli", "api"]
        case Kind.CPU:
            return ["ops.cli", "worker", "cpu", "--name", part.name]
        case Kind.BEAT:
            return ["ops.cli", "beat"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
