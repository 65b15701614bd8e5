"""Which concurrencies the bench compares, and on how much of the workload.

Imports the standard library alone.
"""

from ops.bench.task import TokenRequest

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
_ROUNDS = 3
_FEWEST = 24


def requests_for(requests: list[TokenRequest], in_flight: int) -> list[TokenRequest]:
    """Return enough requests to keep so many in flight: three times as many, 24 at least.

    They are taken evenly from the whole, so that long and short ones keep their shares.
    """
    num_wanted = min(max(_FEWEST, _ROUNDS * in_flight), len(requests))
    return [requests[index * len(requests) // num_wanted] for index in range(num_wanted)]
