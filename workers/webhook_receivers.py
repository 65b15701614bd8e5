"""Receivers: where a delivery goes now, signed by whom, and what its attempts say of the receiver.

A delivery goes to the URL its job named, signed by its tenant's secret, or to a registered
endpoint, whose URL and secrets are looked up at each attempt. Must not know HTTP or leases.
"""

from dataclasses import dataclass

from queueing.deliveries import AttemptNote, DeliveryLog, Verdict
from queueing.endpoints import EndpointStore
from queueing.outbox import Delivery
from queueing.webhook_signature import WebhookSecret
from workers.webhook_lanes import Lanes, Wait


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to send, with a place in the lanes that `leave` gives back."""

    url: str
    signers: tuple[WebhookSecret, ...]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """There is nobody to send to any more; `reason` is for the delivery's owner."""

    reason: str


class Receivers:
    """All receivers of one worker. Safe from any thread."""

    def __init__(
        self,
        endpoints: EndpointStore,
        deliveries: DeliveryLog,
        lanes: Lanes,
        secret: WebhookSecret | None,
    ) -> None:
        """Take what tenants' secrets are made from; without it, jobs' own URLs are given up."""
        self._endpoints = endpoints
        self._deliveries = deliveries
        self._lanes = lanes
        self._secret = secret

    def enter(self, delivery: Delivery) -> Destination | Wait | Unreachable:
        """Say where a delivery goes, and take a place there when it may go now."""
        found = self._find(delivery)
        if isinstance(found, Destination):
            return self._lanes.enter(_receiver(found.url)) or found
        return found

    def leave(self, destination: Destination, *, duration_s: float, hung: bool) -> None:
        """Give the place back and say how the receiver behaved."""
        self._lanes.leave(_receiver(destination.url), duration_s=duration_s, hung=hung)

    def note(
        self, delivery_id: str, delivery: Delivery, attempt: AttemptNote, verdict: Verdict
    ) -> bool:
        """Write down what an attempt says of an endpoint; True when it disabled the endpoint."""
        if delivery.endpoint_id is None:
            return False
        return self._deliveries.note(delivery.endpoint_id, delivery_id, attempt, verdict)

    def _find(self, delivery: Delivery) -> Destination | Wait | Unreachable:
        if delivery.endpoint_id is None:
            assert delivery.url is not None, "a delivery goes to a URL or to an endpoint"
            assert delivery.tenant is not None, "a URL is some tenant's"
            if self._secret is None:
                return Unreachable("this installation has no webhook secret")
            return Destination(delivery.url, (self._secret.for_tenant(delivery.tenant),))
        endpoint = self._endpoints.receiver(delivery.endpoint_id)
        if endpoint is None:
            return Unreachable("the endpoint was deleted")
        if not (endpoint.is_enabled or delivery.is_test):
            return Unreachable("the endpoint is disabled")
        if endpoint.wait_s > 0 and not delivery.is_test:
            return Wait(endpoint.wait_s)
        return Destination(endpoint.url, endpoint.signers)


def _receiver(url: str) -> str:
    """Return scheme, host and port as the URL has them: what the lanes count by."""
    return "/".join(url.split("/", 3)[:3]).partition("?")[0]
