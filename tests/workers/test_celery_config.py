"""What our settings do to a worker's process, in a process of its own."""

import subprocess
import sys

READY_WORKER = """
import gc
from celery.signals import worker_ready
from workers.celery_config import make_celery
make_celery("test", "redis://127.0.0.1:1/0", intake=object())
worker_ready.send(sender=None)
print(gc.get_freeze_count() > 0, len(gc.get_objects(generation=2)))
"""


def test_the_collector_no_longer_looks_through_what_was_there_when_the_worker_was_ready():
    run = subprocess.run(
        [sys.executable, "-c", READY_WORKER], capture_output=True, check=True, text=True
    )

    is_frozen, num_looked_through = run.stdout.split()
    assert is_frozen == "True"
    assert int(num_looked_through) < 1_000
