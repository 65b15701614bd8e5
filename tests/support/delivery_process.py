"""A CPU worker that only delivers webhooks, as a process of its own that a test can kill.

Arguments: the store's address, the loopback port receivers may listen on, and how many deliveries
go on at once, all of them to one receiver if need be. A lease lasts two seconds, so that what the
process held when it died comes back soon.
"""

import signal
import sys
import threading

from prometheus_client import CollectorRegistry

from ops.metrics import WebhookMetrics
from queueing.clock import SystemClock
from queueing.deliveries import DeliveryLog
from queueing.endpoints import EndpointStore
from queueing.job import WEBHOOK_QUEUE
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from queueing.webhook_url import UrlPolicy
from tests.support.cpu_worker import cpu_worker
from tests.support.deliveries import SECRET
from workers.webhook_client import WebhookClient
from workers.webhook_lanes import Lanes
from workers.webhook_receivers import Receivers
from workers.webhooks import RetrySchedule, WebhookDeliverer


def main(redis_url: str, port: int, slots: int) -> None:
    """Deliver until told to stop."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    client = connect(redis_url)
    queue = JobQueue(client, QueueLimits(lease_ms=2_000))
    policy = UrlPolicy.of(allow_http=True, allow_networks=["127.0.0.0/8"], allowed_ports=[port])
    deliverer = WebhookDeliverer(
        queue,
        WebhookClient(policy, 5.0, SystemClock()),
        Receivers(EndpointStore(client), DeliveryLog(client), Lanes(4 * slots), SECRET),
        WebhookMetrics(CollectorRegistry()),
        RetrySchedule(),
    )
    with cpu_worker(redis_url, queue, WEBHOOK_QUEUE, deliverer.deliver, slots=slots):
        stopped.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
