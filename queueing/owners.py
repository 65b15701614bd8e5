"""Owners: whose an object is, told by its id alone. For the operator's audit, never for an answer:
what a tenant asks for is looked up under its own name. Knows no HTTP.
"""

from typing import cast

import redis

from queueing import keys
from queueing.store import translated_errors

_FAMILY_OF_PREFIX = {
    "job_": keys.JOB,
    "resp_": keys.JOB,
    "dlv_": keys.JOB,
    "batch_": keys.BATCH,
    "file-": keys.FILE,
    "whep_": keys.ENDPOINT,
}
PREFIXES = tuple(_FAMILY_OF_PREFIX)


class Owners:
    """Asks the store for the tenant of an object. Thread-safe: it holds nothing but the client."""

    def __init__(self, client: "redis.Redis", *, prefix: str = "{pm}:") -> None:
        self._client = client
        self._prefix = prefix

    def owner_of(self, object_id: str) -> str | None:
        """Return the tenant of an object, None when there is none such; raises StoreUnavailable.

        `object_id` is one of our ids, checked by the caller: it begins with one of PREFIXES.
        """
        (family,) = (
            family for start, family in _FAMILY_OF_PREFIX.items() if object_id.startswith(start)
        )
        with translated_errors():
            owner = self._client.hget(family.of(self._prefix, id=object_id), "tenant")
        return cast("str | None", owner)  # the client decodes what it reads
