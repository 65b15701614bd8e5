"""Drain: the one-way switch of a process that is about to end. Set once, read everywhere."""

from threading import Event

from queueing.errors import PromptmillError


class DrainingError(PromptmillError):
    """This process is shutting down and takes no new work."""


class Drain:
    """Whether this process still takes work. Thread-safe."""

    def __init__(self) -> None:
        self._begun = Event()

    @property
    def has_begun(self) -> bool:
        """True from the moment the process was told to end."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Take no new work from now on."""
        self._begun.set()

    def refuse_new_work(self) -> None:
        """Raise DrainingError once it has begun."""
        if self.has_begun:
            raise DrainingError
