"""Celery's events of a worker, gathered: what one turn of its event loop tells goes out as one
message.

Celery gathers the events of tasks by itself, but never more than 24, and has its loop asked for a
flush at each. A turn here begins and ends some hundred jobs. Flower sees an event no later for it.
"""

from collections.abc import Callable
from typing import Any

from celery.app.events import Events
from celery.events.dispatcher import EventDispatcher

# The events of a full worker's turn, three a job, in some hundred kilobytes.
_MAX_EVENTS = 1_000


class GatheringDispatcher(EventDispatcher):
    """Asks for one flush a turn. Not thread-safe, as Celery's is not: the main thread sends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what Celery's takes."""
        super().__init__(*args, **{"buffer_limit": _MAX_EVENTS, **options})
        self._is_asked = False
        self._ask: Callable[[], None] | None = options.get("on_send_buffered")
        if self._ask is not None:
            self.on_send_buffered = self._ask_once

    def flush(self, errors: bool = True, groups: bool = True) -> None:  # noqa: FBT001, FBT002  Celery's
        """Publish what was gathered."""
        self._is_asked = False
        super().flush(errors=errors, groups=groups)

    def _ask_once(self) -> None:
        if not self._is_asked and self._ask is not None:
            self._is_asked = True
            self._ask()


class GatheredEvents(Events):
    """What a Celery app makes its dispatcher from."""

    dispatcher_cls: Any = GatheringDispatcher  # the stub says str; Celery takes a class as well
