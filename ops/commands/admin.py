"""`promptmill admin`: look at queues, handle dead jobs, and drain, as the operator.

Talks to Redis directly, so it works without the admin API and while every API process is down.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import click
import redis

from ops.commands.store import store_url
from ops.commands.switch import flip_switch
from ops.settings import Settings
from queueing.dead_jobs import DeadJobs
from queueing.endpoints import EndpointStore
from queueing.errors import PromptmillError, RequestError
from queueing.pages import PageQuery
from queueing.queue import JobQueue, QueueLimits
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard

_PAGE = 1_000


@click.group()
def admin() -> None:
    """Look at queues, handle dead jobs, and drain."""


@admin.command()
def queues() -> None:
    """Print what waits, by priority, what is leased, and what became of the rest."""
    with _queue() as (_, queue):
        for name in queue.queues():
            depth = queue.depth(name)
            ready = "  ".join(f"{priority}: {count}" for priority, count in depth.ready.items())
            totals = "  ".join(f"{event}: {count}" for event, count in queue.totals(name).items())
            click.echo(f"{name}  {ready}  later: {depth.later}  leased: {depth.leased}")
            click.echo(f"  {totals}")


@admin.command()
def dead() -> None:
    """Print the dead jobs of all tenants, newest first."""
    with _dead_jobs() as dead_jobs:
        page = dead_jobs.page(PageQuery(_PAGE))
        for job in page.items:
            click.echo(f"{job.id}  {job.tenant}  {job.queue}  {job.priority}  losses: {job.losses}")
        if page.has_more:
            click.echo("there are more", err=True)


@admin.command()
def endpoints() -> None:
    """Print the webhook endpoints that deliveries disabled, of all tenants, the last one first."""
    with _queue() as (client, _):
        store = EndpointStore(client, prefix=Settings().key_prefix)
        for endpoint in store.disabled_page(PageQuery(_PAGE)).items:
            click.echo(f"{endpoint.id}  {endpoint.tenant}  {endpoint.disabled_reason}")


@admin.command()
@click.argument("job_id")
def retry(job_id: str) -> None:
    """Queue a copy of a dead job and print its id."""
    with _dead_jobs() as dead_jobs:
        copy = dead_jobs.retry(job_id)
        if copy is None:
            raise click.ClickException(f"there is no dead job {job_id}")
        click.echo(copy.job_id)


@admin.command()
@click.argument("job_id")
def drop(job_id: str) -> None:
    """Erase a dead job."""
    with _dead_jobs() as dead_jobs:
        if not dead_jobs.drop(job_id):
            raise click.ClickException(f"there is no dead job {job_id}")
    click.echo(f"{job_id} dropped")


@admin.command()
def drain() -> None:
    """Let all processes take nothing new and finish what runs, until `resume`."""
    _flip_drain(1)
    click.echo("draining: look at `promptmill admin queues` for what is still leased")


@admin.command()
def resume() -> None:
    """Let all processes go on after a drain."""
    _flip_drain(None)
    click.echo("resumed")


def _flip_drain(value: int | None) -> None:
    with _queue() as (client, _):
        flip_switch(SwitchBoard(client, prefix=Settings().key_prefix), Switch.DRAIN, value)


@contextmanager
def _queue() -> Iterator[tuple["redis.Redis", JobQueue]]:
    """Return the store and its queue; what they refuse is one line and exit status 1."""
    settings = Settings()
    with connect(store_url(settings)) as client:
        limits = QueueLimits(**settings.queue_limits())
        try:
            yield client, JobQueue(client, limits, prefix=settings.key_prefix)
        except RequestError as error:
            raise click.ClickException(error.message) from error
        except PromptmillError as error:
            raise click.ClickException(str(error)) from error


@contextmanager
def _dead_jobs() -> Iterator[DeadJobs]:
    with _queue() as (client, queue):
        yield DeadJobs(client, queue, prefix=Settings().key_prefix)
