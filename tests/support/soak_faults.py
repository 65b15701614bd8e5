"""What strikes a soak's stack: one fault after another, drawn from one source of chance.

A fault that lasts is healed before the next is drawn, so that clients can always be expected to get
through in the end.
"""

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from threading import Event

import redis

from tests.support.proxy import SILENCE, Weather
from tests.support.soak_stack import SoakStack

_HOUR_S = 3_600


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to strike, and how often beside the others."""

    name: str
    weight: int
    strike: Callable[[], None]


class Faults:
    """Draws faults. `num_struck` counts them by name."""

    def __init__(self, stack: SoakStack, chance: Random) -> None:
        self._stack = stack
        self._chance = chance
        self.num_struck: Counter[str] = Counter()
        self._faults = [
            Fault("process killed", 5, self._kill),
            Fault("process told to end", 3, self._terminate),
            Fault("process stopped and continued", 3, self._pause),
            Fault("store killed and restarted", 1, self._lose_store),
            Fault("store stopped and continued", 1, self._hang_store),
            Fault("process cut off, silently", 2, self._stall),
            Fault("connections refused", 2, self._refuse),
            Fault("replies late and broken off", 2, self._break_replies),
            Fault("store out of memory", 1, self._fill_store),
        ]
        if stack.clocks:
            self._faults.append(Fault("clock set wrong", 2, self._set_clock))

    @property
    def names(self) -> list[str]:
        """The faults that can be drawn here."""
        return [fault.name for fault in self._faults]

    def strike(self) -> None:
        """Let one fault happen; return when it is over."""
        (fault,) = self._chance.choices(self._faults, [fault.weight for fault in self._faults])
        self.num_struck[fault.name] += 1
        fault.strike()

    def _wait(self, seconds: float) -> None:
        """Let a fault last; what ended meanwhile is started again."""
        Event().wait(seconds)
        self._stack.supervise()

    def _mortal(self) -> str:
        return self._chance.choice(self._stack.mortals).name

    def _anyone(self) -> str:
        return self._chance.choice(self._stack.parts).name

    def _kill(self) -> None:
        self._stack.processes[self._mortal()].kill9()

    def _terminate(self) -> None:
        self._stack.processes[self._mortal()].signal(signal.SIGTERM)

    def _pause(self) -> None:
        """Stop a process, every other time for longer than a lease lasts."""
        process = self._stack.processes[self._anyone()]
        process.signal_family(signal.SIGSTOP)
        Event().wait(
            self._chance.uniform(0.2, 0.5) + self._chance.choice([0.0, self._stack.lease_s])
        )
        process.signal_family(signal.SIGCONT)

    def _lose_store(self) -> None:
        self._stack.server.kill9()
        Event().wait(self._chance.uniform(0.0, 1.0))
        self._stack.server.start()

    def _hang_store(self) -> None:
        self._stack.server.suspend()
        Event().wait(self._chance.uniform(0.5, 2.0))
        self._stack.server.resume()

    def _stall(self) -> None:
        proxy = self._stack.proxies[self._anyone()]
        proxy.set_weather(SILENCE)
        self._wait(self._chance.uniform(0.5, self._stack.lease_s))
        proxy.set_weather(Weather())

    def _refuse(self) -> None:
        proxy = self._stack.proxies[self._anyone()]
        proxy.refuse()
        self._wait(self._chance.uniform(0.2, 1.5))
        proxy.accept()

    def _break_replies(self) -> None:
        proxy = self._stack.proxies[self._anyone()]
        proxy.set_weather(Weather(delay_s=(0.0, 0.05), reset_share=0.05))
        self._wait(self._chance.uniform(0.5, 2.0))
        proxy.set_weather(Weather())

    def _fill_store(self) -> None:
        client: redis.Redis = self._stack.client
        client.config_set("maxmemory", 1)
        self._wait(self._chance.uniform(0.3, 1.5))
        client.config_set("maxmemory", 0)

    def _set_clock(self) -> None:
        offset_s = self._chance.randint(-_HOUR_S, _HOUR_S)
        self._stack.clocks[self._anyone()].set(offset_s)
