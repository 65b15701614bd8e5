import pytest
from click.testing import CliRunner

from ops.cli import main
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard
from tests.support.jobs import QUEUE, a_job

DEAD = "job_" + "d" * 22


@pytest.fixture
def run(redis_url, monkeypatch):
    """Return a way to run a command of `promptmill admin` against the test's server."""
    monkeypatch.setenv("PROMPTMILL_REDIS_URL", redis_url)

    def command(*words):
        return CliRunner().invoke(main, ["admin", *words])

    return command


@pytest.fixture
def dead(redis_url):
    """Leave one job that died with its worker."""
    with connect(redis_url) as client:
        queue = JobQueue(client, QueueLimits(max_losses=1, lease_ms=1))
        queue.enqueue(a_job(DEAD, request="a secret prompt"))
        queue.claim(QUEUE, "worker", 1)
        while not queue.reap(QUEUE):
            pass


@pytest.mark.usefixtures("dead")
def test_queues_are_told_with_what_became_of_their_jobs(run):
    told = run("queues").stdout

    assert told == (
        f"{QUEUE}  realtime: 0  standard: 0  bulk: 0  later: 0  leased: 0\n"
        "  submitted: 1  claimed: 1  lost: 1  dead: 1\n"
    )


@pytest.mark.usefixtures("dead")
def test_a_dead_job_is_listed_tried_again_and_dropped(run):
    listed = run("dead").stdout
    copy = run("retry", DEAD)
    dropped = run("drop", DEAD)

    assert listed == f"{DEAD}  default  {QUEUE}  standard  losses: 1\n"
    assert copy.stdout.startswith("job_")
    assert dropped.exit_code == 0
    assert run("dead").stdout == ""


@pytest.mark.usefixtures("redis_url")
@pytest.mark.parametrize("words", [("retry", DEAD), ("drop", DEAD)])
def test_what_cannot_be_done_is_one_line_and_status_one(run, words):
    refused = run(*words)

    assert refused.exit_code == 1
    assert refused.output.startswith("Error: ")
    assert refused.output.count("\n") == 1


def test_a_drain_is_begun_and_ended_with_a_line_about_who_did(run, redis_url):
    begun = run("drain")
    with connect(redis_url) as client:
        while_on = SwitchBoard(client).read()
        ended = run("resume")
        after = SwitchBoard(client).read()

    assert (begun.exit_code, ended.exit_code) == (0, 0)
    assert (while_on, after) == ({Switch.DRAIN: 1}, {})
    assert '"switch": "drain"' in begun.output
