"""A soak: a stack under steady load, struck by one fault after another, and the check at the end.

Owns the stack, the loads and their receiver. All chance comes from one source, so that a seed
repeats what is drawn; what it meets depends on the machine.
"""

import json
import queue
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic

import httpx

from queueing.job import JANITOR_ID, WEBHOOK_QUEUE, JobState
from queueing.tenants import Tenant, TenantStore
from queueing.webhook_signature import verify
from tests.support.audit import faults_in, live_jobs
from tests.support.deliveries import SECRET
from tests.support.jobs import QUEUE
from tests.support.receiver import Receiver
from tests.support.soak_client import SoakClient
from tests.support.soak_faults import Faults
from tests.support.soak_growth import Growth, GrowthWatch
from tests.support.soak_load import Pace, TenantLoad
from tests.support.soak_stack import RECORD_TTL_S, Part, SoakStack
from tests.support.waiting import wait_until

TENANTS = ("acme", "umbra")
_LOOK_EVERY_S = 1.0
_SETTLE_LIMIT_S = 120.0
# Killed by us, ended in order, or told to end before it could listen.
_EXPECTED_ENDS = ("-9", "0", "-15")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a soak is and how much happens in it; `fault_pause_s` is a range."""

    minutes: float
    parts: tuple[Part, ...]
    pace: Pace
    lease_s: float
    fault_pause_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SoakVerdict:
    """What was not as promised; a good soak has an empty one."""

    wrong: tuple[str, ...] = ()
    miscounted: tuple[str, ...] = ()
    unended: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    untold_webhooks: tuple[str, ...] = ()
    keys_left: tuple[str, ...] = ()
    lost_blocks: int = 0
    strange_ends: tuple[str, ...] = ()


ALL_IS_WELL = SoakVerdict()


class Soak:
    """One soak, from the first process to the verdict."""

    def __init__(self, folder: Path, plan: Plan, receiver: Receiver, chance: Random) -> None:
        folder.mkdir()
        self._plan = plan
        self._receiver = receiver
        self._chance = chance
        self.stack = SoakStack(
            folder,
            plan.parts,
            Random(chance.random()),
            lease_s=plan.lease_s,
            receiver_port=receiver.port,
        )
        self.faults = Faults(self.stack, Random(chance.random()))
        self._watch = GrowthWatch()
        self._loads: list[TenantLoad] = []
        self._told: set[str] = set()
        self._base_keys: set[str] = set()

    def start(self) -> None:
        """Start all processes, let one of everything pass, and note the keys that stay."""
        self.stack.start()
        wait_until(self._answers, 60.0, self.stack.logs)
        tenants = TenantStore(self.stack.client)
        for name in TENANTS:
            tenants.put(Tenant(name))
            _, text = tenants.create_key(name)
            client = SoakClient(self.stack.api_urls, text, Random(self._chance.random()))
            url = f"{self._receiver.url()}/{name}"
            chance = Random(self._chance.random())
            self._loads.append(TenantLoad(name, client, url, self._plan.pace, chance))
        for load in self._loads:
            load.one_of_each()
        wait_until(lambda: not self._unended(), _SETTLE_LIMIT_S, self.stack.logs)
        self._base_keys = self._lasting_keys()

    def run(self) -> None:
        """Let faults strike under load until the time is over."""
        until_s = monotonic() + self._plan.minutes * 60
        for load in self._loads:
            load.start()
        while monotonic() < until_s:
            self._rest(self._chance.uniform(*self._plan.fault_pause_s))
            self.faults.strike()
        self._rest(_LOOK_EVERY_S)

    def finish(self) -> SoakVerdict:
        """Let everything come to its end, end the processes, and say what was not as promised.

        What the last fault struck may end only now, so ended processes are started again here too.
        """
        for load in self._loads:
            load.stop_submitting()
        wait_until(self._is_settled, _SETTLE_LIMIT_S, self.stack.logs)
        for load in self._loads:
            load.close()
        self._take_webhooks()
        strange = tuple(self.stack.end_in_order())
        return SoakVerdict(
            wrong=tuple(fault for load in self._loads for fault in load.account.wrong),
            miscounted=tuple(self._miscounted()),
            unended=tuple(self._unended()),
            faults=tuple(faults_in(self.stack.client)),
            untold_webhooks=tuple(sorted(self._awaited_webhooks() - self._told)),
            keys_left=tuple(sorted(self._lasting_keys() - self._base_keys)),
            lost_blocks=self.stack.lost_blocks(),
            strange_ends=strange + tuple(self._strange_deaths()),
        )

    def growths(self) -> list[Growth]:
        """Say how the elders grew."""
        return self._watch.growths()

    def report(self) -> str:
        """Write down what happened, for the record."""
        ends: Counter[str] = sum((load.account.ends for load in self._loads), Counter())
        repeats: Counter[str] = sum((load.num_repeats for load in self._loads), Counter())
        totals = self.stack.queue.totals(QUEUE)
        lines = {
            "faults": dict(self.faults.num_struck),
            "deaths": dict(self.stack.deaths),
            "ends": dict(ends),
            "batches": sum(load.account.num_batches for load in self._loads),
            "webhooks": len(self._told),
            "client repeats": dict(repeats),
            "claimed": totals["claimed"],
            "lost leases": totals.get("lost", 0),
            "stale results": totals.get("stale", 0),
        }
        growths = "\n".join(str(growth) for growth in self.growths())
        return f"{json.dumps(lines, indent=1)}\n{growths}"

    def wait_for_lifetimes(self) -> set[str]:
        """Wait until what was kept for a time is gone; return the keys that are left too many.

        A batch is remembered for weeks, so its keys are left out.
        """
        Event().wait(RECORD_TTL_S + 1)
        return {key for key in self._keys() - self._base_keys if "batch" not in key}

    def stop(self) -> None:
        """End whatever still runs."""
        self.stack.stop()

    def _rest(self, seconds: float) -> None:
        """Let the load alone for a while; start what has ended, look at what lives."""
        until_s = monotonic() + seconds
        while (left_s := until_s - monotonic()) > 0:
            self.stack.supervise()
            for part in self.stack.elders:
                self._watch.look(part.name, self.stack.processes[part.name].pid)
            self._take_webhooks()
            Event().wait(min(left_s, _LOOK_EVERY_S))

    def _answers(self) -> bool:
        try:
            return all(
                httpx.get(f"{url}/readyz", timeout=1, trust_env=False).is_success
                for url in self.stack.api_urls
            )
        except httpx.TransportError:
            return False

    def _is_settled(self) -> bool:
        self.stack.supervise()
        return all(load.has_ended for load in self._loads) and not self._unended()

    def _unended(self) -> list[str]:
        return [name for name in live_jobs(self.stack.client) if name != JANITOR_ID]

    def _miscounted(self) -> list[str]:
        """Compare the store's counters with each other and with what clients know."""
        num_known = sum(load.account.ends.total() for load in self._loads)
        jobs, webhooks = (_counted(self.stack, name) for name in (QUEUE, WEBHOOK_QUEUE))
        wrong = [f"{one} of jobs and webhooks" for one in (jobs, webhooks) if one[0] != one[1]]
        if jobs[0] != num_known:
            wrong.append(f"{jobs[0]} jobs were submitted, clients know of {num_known}")
        return wrong

    def _awaited_webhooks(self) -> set[str]:
        return set().union(*(load.account.awaited_webhooks for load in self._loads))

    def _take_webhooks(self) -> None:
        while True:
            try:
                received = self._receiver.arrivals.get_nowait()
            except queue.Empty:
                return
            tenant = received.request_line.split(" ")[1].rpartition("/")[2]
            # The sender's clock may be wrong; its signature must be right for what it says.
            sent_s = int(received.headers["webhook-timestamp"])
            secret = SECRET.for_tenant(tenant)
            self._told.add(verify(secret, received.headers, received.body, sent_s))

    def _keys(self) -> set[str]:
        """Return all keys but the bells, which come and go: one for each queue and priority."""
        keys = {str(key) for key in self.stack.client.scan_iter(count=10_000)}
        return {key for key in keys if not key.endswith(":bell")}

    def _lasting_keys(self) -> set[str]:
        """Return the keys without a lifetime."""
        keys = sorted(self._keys())
        pipeline = self.stack.client.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
        lifetimes = zip(keys, pipeline.execute(), strict=True)
        return {key for key, ttl in lifetimes if ttl == -1}

    def _strange_deaths(self) -> list[str]:
        return [end for end in self.stack.deaths if end.partition(" ")[2] not in _EXPECTED_ENDS]


def _counted(stack: SoakStack, queue_name: str) -> tuple[int, int]:
    """Return how many jobs a queue was given and how many ended."""
    totals = stack.queue.totals(queue_name)
    num_ended = sum(totals.get(state.value, 0) for state in JobState if state.is_terminal)
    return totals.get("submitted", 0), num_ended
