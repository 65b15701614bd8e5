"""Waiting for what real processes do: a condition is asked again until it holds."""

from collections.abc import Callable
from time import monotonic, sleep

_POLL_S = 0.02


def wait_until(
    condition: Callable[[], object], limit_s: float = 20.0, describe: Callable[[], str] = str
) -> None:
    """Return when the condition holds; fail after `limit_s` with what `describe` says."""
    until_s = monotonic() + limit_s
    while not condition():
        assert monotonic() < until_s, f"not within {limit_s} s: {describe()}"
        sleep(_POLL_S)
