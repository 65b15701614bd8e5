"""Health and metrics of an API process, open to whoever reaches its port.

/livez says that the process answers. /readyz says that it takes work: the store takes a write and
nobody drains the process or the installation; workers are not asked, since a queue without them
still takes work. /metrics is this process's registry with the queues as they are at the moment of
the scrape.
"""

from collections.abc import Callable, Sequence

import redis
from flask import Blueprint, Response, jsonify
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from api.drain import Drain, DrainingError
from queueing import keys
from queueing.errors import StoreUnavailable
from queueing.store import translated_errors

OPEN_ENDPOINTS = frozenset({"health.livez", "health.readyz", "health.metrics"})

_PROBE_TTL_S = 10


class StoreProbe:
    """Writes a key that goes away by itself, to see whether the store takes writes."""

    def __init__(self, client: "redis.Redis", prefix: str) -> None:
        self._client = client
        self._key = keys.PROBE.of(prefix)

    def check(self) -> None:
        """Raise StoreUnavailable unless the store takes a write."""
        with translated_errors():
            self._client.set(self._key, "1", ex=_PROBE_TTL_S)


def health_blueprint(
    probe: StoreProbe,
    drain: Drain,
    registry: CollectorRegistry,
    before_scrape: Sequence[Callable[[], None]],
) -> Blueprint:
    """Return the open routes. `before_scrape` brings up to date what nobody observes."""
    blueprint = Blueprint("health", __name__)

    @blueprint.get("/livez")
    def livez() -> Response:
        """Say that the process answers."""
        return jsonify(status="alive")

    @blueprint.get("/readyz")
    def readyz() -> Response:
        """Say whether the process takes work: the store takes writes and nobody drains it."""
        try:
            drain.refuse_new_work()
            probe.check()
        except DrainingError:
            return _not_ready("draining")
        except StoreUnavailable:
            return _not_ready("store_unavailable")
        return jsonify(status="ready")

    @blueprint.get("/metrics")
    def metrics() -> Response:
        """Return this process's metrics, with the queues as they are now, for Prometheus."""
        for refresh in before_scrape:
            refresh()
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return blueprint


def _not_ready(status: str) -> Response:
    response = jsonify(status=status)
    response.status_code = 503
    return response
