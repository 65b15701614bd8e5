import re

import pytest

from queueing.admission import RateLimits
from queueing.api_key import digest_of, is_whole, new_api_key
from queueing.errors import RequestError
from queueing.job import Priority
from queueing.tenants import Tenant, TenantStore, Tier


@pytest.fixture
def tenants(client, clock):
    return TenantStore(client, clock=clock)


@pytest.fixture
def acme(tenants):
    tenant = Tenant(
        "acme",
        Tier.PREMIUM,
        frozenset({Priority.STANDARD, Priority.BULK}),
        frozenset({"small"}),
        RateLimits(60, 10_000, None),
    )
    tenants.put(tenant)
    return tenant


def test_a_key_has_a_prefix_a_random_part_and_a_checksum():
    key = new_api_key()

    mistyped = key[:10] + ("a" if key[10] != "a" else "b") + key[11:]

    assert re.fullmatch("pm_[0-9A-Za-z]{38}", key)
    assert is_whole(key)
    assert not is_whole(mistyped)
    assert key != new_api_key()


def test_a_key_stands_for_its_tenant_with_all_it_may_do(tenants, acme):
    _, text = tenants.create_key("acme", "laptop")

    assert tenants.owner_of(text) == acme


@pytest.mark.usefixtures("acme")
def test_only_the_digest_of_a_key_is_kept(tenants, client):
    _, text = tenants.create_key("acme")

    kept = [*client.scan_iter("*")]
    for key in kept:
        values = client.hgetall(key) if client.type(key) == "hash" else client.zrange(key, 0, -1)
        assert text not in str(values)
        assert text not in key
    assert digest_of(text) in str(client.hgetall(next(k for k in kept if ":api_key:" in k)))


@pytest.mark.usefixtures("acme")
def test_a_revoked_key_stands_for_nobody_and_is_still_listed(tenants, clock):
    kept, _ = tenants.create_key("acme", "kept")
    revoked, text = tenants.create_key("acme", "lost")
    clock.advance(ms=1_000)

    assert tenants.revoke_key(revoked.id)

    assert tenants.owner_of(text) is None
    listed = {key.name: key.revoked_s for key in tenants.keys_of("acme")}
    assert listed == {"kept": None, "lost": kept.created_s + 1}


@pytest.mark.usefixtures("acme")
def test_revoking_twice_changes_nothing_and_an_unknown_key_is_told(tenants):
    key, _ = tenants.create_key("acme")
    tenants.revoke_key(key.id)
    (first,) = tenants.keys_of("acme")

    assert tenants.revoke_key(key.id)
    assert tenants.keys_of("acme") == [first]
    assert not tenants.revoke_key("key_unknown")


@pytest.mark.parametrize("text", ["", "pm_", "pm_" + "a" * 38, "x" * 10_000, "a\0b", "\ud800"])
def test_a_text_that_is_no_key_stands_for_nobody(tenants, text):
    assert tenants.owner_of(text) is None


def test_a_key_needs_a_tenant(tenants):
    with pytest.raises(RequestError):
        tenants.create_key("nobody")


@pytest.mark.parametrize("name", ["", "-a", "A", "a:b", "a" * 64, "a b", "a\n"])
def test_a_tenant_has_a_plain_name(tenants, name):
    with pytest.raises(RequestError):
        tenants.put(Tenant(name))


@pytest.mark.usefixtures("acme")
def test_tenants_are_listed_as_they_are_now(tenants, clock):
    clock.advance(ms=1)
    tenants.put(Tenant("beta"))
    tenants.put(Tenant("acme"))

    assert tenants.all_tenants() == [Tenant("acme"), Tenant("beta")]
