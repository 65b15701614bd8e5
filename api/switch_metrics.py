"""The degradation switches in an API process's metrics: read from the store at each scrape.

Draining is none of them: it degrades nothing, and workers tell of it themselves. While the store is
away the switches are absent from the answer.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queueing.errors import StoreUnavailable
from queueing.model_routes import ModelRoutes
from queueing.switches import Switch, SwitchBoard

_USE_MODEL = "use_model"


class SwitchStates(Collector):
    """Which switches are on, as one family."""

    def __init__(
        self, board: SwitchBoard, routes: ModelRoutes, registry: CollectorRegistry
    ) -> None:
        self._board = board
        self._routes = routes
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Name the family without asking the store."""
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        """Read the switches; nothing when the store does not answer."""
        family = self._family()
        try:
            on, routes = self._board.read(), self._routes.read()
        except StoreUnavailable:
            return
        for switch in Switch:
            if switch is not Switch.DRAIN:
                family.add_metric((switch.value,), int(switch in on))
        family.add_metric((_USE_MODEL,), int(bool(routes)))
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "promptmill_degradation_switch_active",
            "1 while a degradation switch is on, else 0.",
            labels=("switch",),
        )
