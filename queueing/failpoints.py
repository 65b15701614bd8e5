"""Failpoints: named places at which a test lets a process die, as kill -9 would.

Owns their names, so that a test can go through all of them. A process without a plan of its death
passes them for the price of a comparison.
"""

import os
from enum import StrEnum

EXIT_STATUS = 137  # what a shell says of a process that was killed with -9


class Failpoint(StrEnum):
    """Where a process may die; each lies between two effects that a crash tears apart."""

    ENQUEUED = "enqueued"  # the job is accepted, and nobody was told
    CLAIMED = "claimed"  # the lease is taken, and the worker does not know
    STARTED = "started"  # the sequence is in the engine's hands
    GENERATING = "generating"  # a token has come, and more are to come
    FINISHING = "finishing"  # the result is whole, and not written
    FINISHED = "finished"  # it is written, and Celery was not told


class Failpoints:
    """The plan of one process's death: "<name>:<nth>", or None for a long life."""

    def __init__(self, plan: str | None = None) -> None:
        name, _, number = (plan or "").partition(":")
        self._point = Failpoint(name) if name else None
        self._passes_left = int(number or "1")

    def reach(self, point: Failpoint) -> None:
        """Die here if this is the place and the time."""
        if point is not self._point:
            return
        self._passes_left -= 1
        if self._passes_left == 0:
            os._exit(EXIT_STATUS)
