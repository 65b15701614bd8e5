"""How much a test does: a little in every run, much in a soak (PROMPTMILL_SOAK=1)."""

import os
from typing import TypeVar

Amount = TypeVar("Amount", int, float)


def amount(*, quick: Amount, soak: Amount) -> Amount:
    """Return the quick amount, or the soak's when one was asked for."""
    return soak if os.environ.get("PROMPTMILL_SOAK") == "1" else quick  # noqa: TID251  see above
