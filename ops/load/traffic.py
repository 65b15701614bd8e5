"""Traffic: who asks for what and when, drawn from one seed. Knows no queue.

The mix is that of a service shared by a few large and many small tenants: a fifth of the jobs are
realtime, half standard, the rest bulk; lengths are log-normal; the rate swings between 0.7 and 1.2
of what the workers can carry.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from queueing.job import Priority

_SHARES = {Priority.REALTIME: 0.2, Priority.STANDARD: 0.5, Priority.BULK: 0.3}
_DEADLINES_S = {Priority.REALTIME: 30.0, Priority.STANDARD: 300.0, Priority.BULK: None}
_SWING_S = 600.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job: when it comes, what it takes, how soon it has to be done."""

    at_s: float
    tenant: str
    priority: Priority
    tokens: int
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """How much comes: jobs a second on average, their mean length, from how many tenants."""

    jobs_per_s: float
    mean_tokens: float
    num_tenants: int = 40


def arrivals(load: Load, count: int, chance: random.Random) -> Iterator[Arrival]:
    """Draw jobs in order of arrival."""
    now_s = 0.0
    weights = [1 / (rank + 1) for rank in range(load.num_tenants)]
    tenants = [f"tenant-{rank:02}" for rank in range(load.num_tenants)]
    for _ in range(count):
        swing = 0.95 + 0.25 * math.sin(2 * math.pi * now_s / _SWING_S)
        now_s += chance.expovariate(load.jobs_per_s * swing)
        (priority,) = chance.choices(list(_SHARES), list(_SHARES.values()))
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        tokens = max(1, round(chance.lognormvariate(math.log(load.mean_tokens) - 0.5, 1.0)))
        (tenant,) = chance.choices(tenants, weights)
        yield Arrival(now_s, tenant, priority, tokens, _DEADLINES_S[priority])
