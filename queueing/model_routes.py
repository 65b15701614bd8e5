"""ModelRoutes: jobs for one model are given to another while an operator says so.

Lies in the same hash as the switches and is seen as soon: a field `use_model:<name>` holds the name
of the model that is used instead. Without a store a process goes by what it knew last. Who asks for
a model by name asks here once; a route is not followed twice. Knows no model.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import redis

from queueing import keys
from queueing.errors import StoreUnavailable
from queueing.store import translated_errors

_FIELD = "use_model:"
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class RouteChange:
    """A change of what is used for a model; None stands for itself."""

    model: str
    before: str | None
    now: str | None


class ModelRoutes:
    """Reads and sets the routes of one installation."""

    def __init__(self, client: "redis.Redis", *, prefix: str = "{pm}:") -> None:
        self._client = client
        self._key = keys.SWITCHES.of(prefix)

    def read(self) -> dict[str, str]:
        """Return what is used instead, by model; raises StoreUnavailable."""
        with translated_errors():
            fields = cast("dict[str, str]", self._client.hgetall(self._key))
        return {
            name.removeprefix(_FIELD): other
            for name, other in fields.items()
            if name.startswith(_FIELD)
        }

    def put(self, model: str, other: str | None) -> RouteChange:
        """Use another model for this one, or with None itself again; raises StoreUnavailable."""
        field = _FIELD + model
        with translated_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hget(self._key, field)
            if other is None:
                pipeline.hdel(self._key, field)
            else:
                pipeline.hset(self._key, field, other)
            before, _ = pipeline.execute()
        return RouteChange(model, before, other)


class RouteWatch:
    """The routes as one process knows them. Any thread may ask; about once a second one looks."""

    def __init__(self, routes: ModelRoutes, on_change: Callable[[RouteChange], None]) -> None:
        """Take who is told of each change that is seen."""
        self._routes = routes
        self._on_change = on_change
        self._known: dict[str, str] = {}
        self._looking = threading.Lock()
        self._look_at_s = 0.0

    def used_for(self, model: str) -> str:
        """Return the name of the model that is used for this one now."""
        if time.monotonic() >= self._look_at_s and self._looking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._looking.release()
        return self._known.get(model, model)

    def _look(self) -> None:
        self._look_at_s = time.monotonic() + _LOOK_EVERY_S
        with suppress(StoreUnavailable):
            before, self._known = self._known, self._routes.read()
            for model in sorted(before | self._known):
                change = RouteChange(model, before.get(model), self._known.get(model))
                if change.before != change.now:
                    self._on_change(change)
