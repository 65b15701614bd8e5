"""KeptAnswers: results of jobs that were run, kept for a while to answer equal jobs with.

Owns how they lie in the store: one key an answer, under its tenant, so that no tenant is answered
with another's. What makes two jobs equal is the caller's to say, by a digest. Knows no switch.
"""

from collections.abc import Mapping
from typing import cast

import redis

from queueing import keys
from queueing.job import JobResult
from queueing.store import translated_errors
from queueing.wire import decode_result, encode_result


class KeptAnswers:
    """The answers of one installation. Thread-safe: it holds nothing but the client."""

    def __init__(self, client: "redis.Redis", *, prefix: str = "{pm}:") -> None:
        self._client = client
        self._prefix = prefix

    def get(self, tenant: str, digest: str) -> JobResult | None:
        """Return what a tenant's equal job was answered; raises StoreUnavailable."""
        key = keys.ANSWER.of(self._prefix, tenant=tenant, digest=digest)
        with translated_errors():
            payload = cast("str | None", self._client.get(key))
        return None if payload is None else decode_result(payload)

    def put_many(self, answers: Mapping[tuple[str, str], JobResult], ttl_s: int) -> None:
        """Keep answers, by tenant and digest, for `ttl_s` seconds; raises StoreUnavailable."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for (tenant, digest), result in answers.items():
                key = keys.ANSWER.of(self._prefix, tenant=tenant, digest=digest)
                pipeline.set(key, encode_result(result), ex=ttl_s)
            pipeline.execute()
