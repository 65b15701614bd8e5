"""`promptmill keys`: make, list and revoke API keys, and say what their tenants may do.

Talks to Redis directly, as the operator: it works before an API runs and when none does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from ops.commands.store import store_url
from ops.settings import Settings
from queueing.admission import RateLimits
from queueing.errors import RequestError, StoreUnavailable
from queueing.job import Priority
from queueing.store import connect
from queueing.tenants import Tenant, TenantStore, Tier

_PRIORITIES = click.Choice([priority.value for priority in Priority])


@click.group()
def keys() -> None:
    """Make, list and revoke API keys of tenants."""


@keys.command()
@click.argument("tenant")
@click.option("--name", default="", help="What the key is for.")
def create(tenant: str, name: str) -> None:
    """Make a key of TENANT and print it: it is not shown again. A new tenant may do everything."""
    with _tenants() as store:
        if store.get(tenant) is None:
            store.put(Tenant(tenant))
        api_key, text = store.create_key(tenant, name)
    click.echo(f"{api_key.id} of {tenant}", err=True)
    click.echo(text)


@keys.command("list")
@click.option("--tenant", help="Only this tenant's.")
def list_keys(tenant: str | None) -> None:
    """List keys, also those that were revoked within the last 30 days."""
    with _tenants() as store:
        names = [tenant] if tenant else [one.name for one in store.all_tenants()]
        for api_key in (key for name in names for key in store.keys_of(name)):
            state = "active" if api_key.revoked_s is None else "revoked"
            click.echo(
                f"{api_key.id}  {api_key.tenant}  {api_key.hint}  {state}  {api_key.name}".rstrip()
            )


@keys.command()
@click.argument("key_id")
def revoke(key_id: str) -> None:
    """End a key for good; every API refuses it within two seconds."""
    with _tenants() as store:
        if not store.revoke_key(key_id):
            raise click.ClickException(f"there is no key {key_id}")
    click.echo(f"{key_id} revoked")


@keys.command()
@click.argument("tenant")
@click.option("--tier", type=click.Choice([tier.value for tier in Tier]), default="standard")
@click.option("--priority", "priorities", multiple=True, type=_PRIORITIES, help="Allowed.")
@click.option("--model", "models", multiple=True, help="Allowed model; all without one.")
@click.option("--requests-per-min", type=click.IntRange(1))
@click.option("--tokens-per-min", type=click.IntRange(1))
@click.option("--tokens-per-day", type=click.IntRange(1))
def limit(tenant: str, **policy: Any) -> None:
    """Say what TENANT may do. What is not given is without limit."""
    with _tenants() as store:
        store.put(_tenant_of(tenant, **policy))
        _print_tenant(store.get(tenant))


@keys.command()
def tenants() -> None:
    """List tenants with what they may do."""
    with _tenants() as store:
        for tenant in store.all_tenants():
            _print_tenant(tenant)


def _tenant_of(name: str, **policy: Any) -> Tenant:
    rates = ("requests_per_min", "tokens_per_min", "tokens_per_day")
    return Tenant(
        name=name,
        tier=Tier(policy["tier"]),
        priorities=frozenset(map(Priority, policy["priorities"])) or frozenset(Priority),
        models=frozenset(policy["models"]) or None,
        limits=RateLimits(**{rate: policy[rate] for rate in rates}),
    )


def _print_tenant(tenant: Tenant | None) -> None:
    assert tenant is not None, "it was just put"
    limits = tenant.limits
    told = {
        "tier": tenant.tier,
        "priorities": ",".join(sorted(tenant.priorities)),
        "models": "all" if tenant.models is None else ",".join(sorted(tenant.models)),
        "requests/min": limits.requests_per_min or "no limit",
        "tokens/min": limits.tokens_per_min or "no limit",
        "tokens/day": limits.tokens_per_day or "no limit",
    }
    click.echo(f"{tenant.name}  " + "  ".join(f"{name}: {value}" for name, value in told.items()))


@contextmanager
def _tenants() -> Iterator[TenantStore]:
    """Return the store's tenants; what it refuses is one line and exit status 1."""
    settings = Settings()
    with connect(store_url(settings)) as client:
        try:
            yield TenantStore(client, prefix=settings.key_prefix)
        except (RequestError, StoreUnavailable) as error:
            raise click.ClickException(str(error)) from error
