"""A client of a soak that never gives up: it asks again, another API too, until it is answered.

Every request that makes something carries an Idempotency-Key, so that asking again is safe. Owns
one connection pool; used by one thread.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random
from threading import Event
from time import monotonic
from typing import Any

import httpx

_PAUSE_S = 0.2
_PATIENCE_S = 120.0
# Refused for now: shed, full, no store, about to end. Anything else is an answer.
_COME_AGAIN = (429, 503)


class SoakClient:
    """Asks as one tenant. `num_repeats` counts what kept it from an answer."""

    def __init__(self, urls: Sequence[str], api_key: str, chance: Random) -> None:
        self._urls = urls
        self._chance = chance
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"}, timeout=10, trust_env=False
        )
        self.num_repeats: Counter[str] = Counter()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer to a request, however often it has to be sent."""
        until_s = monotonic() + _PATIENCE_S
        while True:
            url = self._chance.choice(self._urls) + path
            try:
                response = self._http.request(method, url, **options)
            except httpx.TransportError as error:
                self.num_repeats[type(error).__name__] += 1
            else:
                if response.status_code not in _COME_AGAIN:
                    return response
                self.num_repeats[str(response.status_code)] += 1
            assert monotonic() < until_s, f"{method} {path} was not answered: {self.num_repeats}"
            Event().wait(_PAUSE_S)

    def make(self, path: str, body: dict[str, object], key: str) -> dict[str, Any]:
        """Make an object by POST, once however often it is asked for; return it."""
        response = self.ask("POST", path, json=body, headers={"Idempotency-Key": key})
        assert response.is_success, f"POST {path}: {response.status_code} {response.text}"
        made: dict[str, Any] = response.json()
        return made

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
