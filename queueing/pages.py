"""Page: a stretch of a tenant's index (zset id -> created_ms), read by cursor.

The cursor is the last id of the page before, so that entries made meanwhile neither repeat nor skip
one. Knows nothing of what the ids stand for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import redis

from queueing.errors import FailureCode, RequestError
from queueing.store import translated_errors

Item = TypeVar("Item")

_READ_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which page: up to `limit` entries after the id `after`, newest first unless `ascending`."""

    limit: int
    after: str | None = None
    ascending: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some entries in order, and whether there are more."""

    items: list[Item]
    has_more: bool


def read_page(
    client: "redis.Redis",
    index: str,
    query: PageQuery,
    fetch: Callable[[Sequence[str]], list[Item | None]],
    score_of: Callable[[str], int | None] = lambda _: None,
) -> Page[Item]:
    """Return one page; `fetch` turns ids into entries, and into None what is not to be shown.

    `score_of` tells where a cursor stood that has left the index since. Raises RequestError when
    the cursor is not in the index and never was.
    """
    items: list[Item] = []
    start = _start_of(client, index, query, score_of)
    while True:
        with translated_errors():
            end = start + _READ_AT_ONCE - 1
            ids: Any = client.zrange(index, start, end, desc=not query.ascending)
        items += [item for item in fetch(ids) if item is not None]
        if len(items) > query.limit:
            return Page(items[: query.limit], has_more=True)
        if len(ids) < _READ_AT_ONCE:
            return Page(items, has_more=False)
        start += _READ_AT_ONCE


def _start_of(
    client: "redis.Redis",
    index: str,
    query: PageQuery,
    score_of: Callable[[str], int | None],
) -> int:
    if query.after is None:
        return 0
    with translated_errors():
        rank_of = client.zrank if query.ascending else client.zrevrank
        rank: Any = rank_of(index, query.after)
    if rank is not None:
        return int(rank) + 1
    score = score_of(query.after)
    if score is None:
        raise RequestError(FailureCode.NOT_FOUND, "no such object", "after")
    before = ("-inf", f"({score}") if query.ascending else (f"({score}", "+inf")
    with translated_errors():
        passed: Any = client.zcount(index, *before)
    return int(passed)
