"""The disk of the store is full: nothing is admitted, nothing is lost, service comes back."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queueing.errors import StoreUnavailable
from tests.support.cluster import Cluster
from tests.support.ledger import ALL_IS_WELL
from tests.support.server import embedded_binary

LIMIT_KIB = 256


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """Return a server that may write only so much to a file, as on a disk with little room."""
    program = tmp_path / "server-on-a-small-disk"
    program.write_text(
        "#!/bin/bash\n"
        "trap '' XFSZ\n"  # so that a write fails, as it does on a full disk
        f"ulimit -S -f {LIMIT_KIB}\n"
        f'exec "{embedded_binary()}" "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def cluster(tmp_path: Path, small_disk: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster", small_disk)
    yield cluster
    cluster.stop()


def make_room(cluster: Cluster) -> None:
    """Take the limit off the server's files."""
    process_id = int(cluster.client.info("server")["process_id"])
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(process_id, resource.RLIMIT_FSIZE, unlimited)


def fill(cluster: Cluster, submit: Callable[[int], object]) -> StoreUnavailable:
    """Submit until the store refuses; return its refusal."""
    for number in range(10_000):
        try:
            submit(number)
        except StoreUnavailable as refusal:
            return refusal
    pytest.fail(f"the disk never filled:\n{cluster.server.log[-2_000:]}")


@pytest.mark.fault("F9")
def test_a_store_whose_disk_is_full_admits_nothing_and_loses_nothing(cluster):
    refusal = fill(
        cluster,
        lambda number: cluster.ledger.submit(cluster.queue, f"{number} " + "x" * 300, 3),
    )

    make_room(cluster)
    cluster.wait_until(lambda: cluster.client.info("persistence")["aof_last_write_status"] == "ok")
    cluster.server.restart()
    make_room(cluster)
    worker = cluster.start_worker()
    cluster.wait_until_settled()

    assert refusal.kind == "misconf"
    assert cluster.ledger.check(cluster.queue, cluster.client) == ALL_IS_WELL
    assert cluster.drain(worker) == 0
