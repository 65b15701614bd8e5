"""Admission: how much a tenant may ask for in a time, kept as token buckets in Redis.

Requests and tokens are taken in one atomic step (scripts/admit.lua), so that a refusal costs
nothing. Tokens are counted as a job's cost: its prompt and all it may generate. Lines of a batch
take tokens from the same buckets but leave a share to live calls, which must not find nothing.
Knows no HTTP and no queue. Raises StoreUnavailable when Redis is down: without its buckets nobody
is admitted.
"""

import json
import math
from dataclasses import asdict, dataclass, replace

import redis

from queueing.clock import Clock
from queueing.queue import QueueLimits
from queueing.store import Script

# Clients take a longer wait for a reason to give up.
MAX_RETRY_AFTER_S = 120
# What lines of batches leave in each bucket of tokens to live calls.
LIVE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What a tenant may ask for; None is no limit. A burst is up to 1.5 times a minute's rate."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    tokens_per_day: int | None = None

    @property
    def are_unlimited(self) -> bool:
        """True when there is nothing to count."""
        return self == RateLimits()


@dataclass(frozen=True, slots=True)
class Allowance:
    """The bucket nearest to its end, as it is told: its size, what is left, when it is full."""

    limit: int
    remaining: int
    reset_s: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request may go on. `used_up` names what does not allow it: requests, tokens or day.

    `allowance` is None where no rate is limited.
    """

    used_up: str | None = None
    retry_after_s: int = 0
    allowance: Allowance | None = None


class Admission:
    """The buckets of all tenants. Thread-safe: it holds nothing but the client."""

    def __init__(
        self, client: "redis.Redis", *, prefix: str = "{pm}:", clock: Clock | None = None
    ) -> None:
        self._clock = clock
        self._limits_json = QueueLimits().as_json()
        self._admit = Script(client, "admit", prefix, allow_oom=False)

    def take(self, tenant: str, limits: RateLimits, tokens: int) -> Verdict:
        """Count one request of `tokens`, or refuse it and count nothing."""
        return self._ask(tenant, limits, tokens)

    def take_line(
        self, tenant: str, limits: RateLimits, tokens: int, batch_id: str, line: int
    ) -> Verdict:
        """Count the tokens of a batch's line, or say how long to wait and count nothing.

        Lines are asked for in their order; one that was counted before is not counted again. A line
        is no request: the batch was one.
        """
        of_tokens = replace(limits, requests_per_min=None)
        return self._ask(tenant, of_tokens, tokens, LIVE_SHARE, batch_id, line)

    def _ask(self, tenant: str, limits: RateLimits, tokens: int, *line: str | float) -> Verdict:
        if limits.are_unlimited:
            return Verdict()
        now_ms = str(self._clock.now_ms()) if self._clock else ""
        given = {name: value for name, value in asdict(limits).items() if value is not None}
        reply = self._admit(now_ms, self._limits_json, tenant, json.dumps(given), tokens, *line)
        used_up, wait_ms, name, limit, remaining, reset_ms = reply
        wait_s = min(MAX_RETRY_AFTER_S, max(1, math.ceil(int(wait_ms) / 1000)))
        return Verdict(
            used_up=used_up or None,
            retry_after_s=wait_s if used_up else 0,
            allowance=Allowance(int(limit), int(remaining), math.ceil(int(reset_ms) / 1000))
            if name
            else None,
        )
