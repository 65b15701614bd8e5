"""Drain: whether this process takes new work. It does not once it was told to end, for good; nor
while the operator drains the installation, which is a switch that all processes see.
"""

import threading

import structlog

from ops.logs import Event
from queueing.errors import PromptmillError
from queueing.switches import Flip, Switch, SwitchWatch


class DrainingError(PromptmillError):
    """Nothing new is taken: this process is about to end, or the installation drains."""


class Drain:
    """Whether this process still takes work. Thread-safe."""

    def __init__(self, switches: SwitchWatch) -> None:
        self._switches = switches
        self._begun = threading.Event()

    def begin(self) -> None:
        """Take no new work from now on."""
        self._begun.set()

    def refuse_new_work(self) -> None:
        """Raise DrainingError while nothing new is taken, StoreUnavailable if that can't be told.

        The store is asked once a second, by whichever request comes then.
        """
        if self._begun.is_set():
            raise DrainingError
        self._switches.look_or_fail()
        if self._switches.value(Switch.DRAIN) is not None:
            raise DrainingError


def log_flip(flip: Flip) -> None:
    """Leave a line about a switch that this process has seen flipped."""
    structlog.stdlib.get_logger(__name__).info(
        Event.SWITCH_FLIPPED, switch=flip.switch.value, before=flip.before, now=flip.now
    )
