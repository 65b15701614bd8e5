"""Whose address counts: the peer's, or what own proxies say of it; never what a caller says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import limits
from api.app import create_api
from api.proxies import address_behind

PEER, CALLER, OTHER = "10.0.0.1", "203.0.113.7", "203.0.113.8"
addresses = st.ip_addresses().map(str)


@pytest.fixture
def ask(settings, monkeypatch):
    """Hold the limiter's clock still; return a way to ask with a bad key through some proxies."""
    monkeypatch.setattr(limits, "monotonic", lambda: 1_000.0)
    apis = []

    def ask_with(num_proxies):
        api = create_api(settings.model_copy(update={"trusted_proxies": num_proxies}))
        apis.append(api)

        def ask_once(forwarded, peer=PEER):
            headers = {"Authorization": "Bearer pm_wrong", "X-Forwarded-For": forwarded}
            overrides = {"REMOTE_ADDR": peer}
            client = api.app.test_client()
            return client.get("/v1/models", headers=headers, environ_overrides=overrides)

        return lambda *args: ask_once(*args).status_code

    yield ask_with
    for api in apis:
        api.close()


def use_up(ask, forwarded):
    return {ask(forwarded) for _ in range(20)}


def test_without_proxies_a_forged_header_changes_nothing(ask):
    ask = ask(0)
    statuses = {ask(f"192.0.2.{number}") for number in range(20)}

    assert statuses == {401}
    assert ask("198.51.100.1") == 429
    assert ask("198.51.100.1", OTHER) == 401


def test_behind_a_proxy_each_caller_has_his_own_share(ask):
    ask = ask(1)
    use_up(ask, CALLER)

    assert ask(CALLER) == 429
    assert ask(OTHER) == 401


@pytest.mark.parametrize("forged", ["192.0.2.1", OTHER, "unknown", "", "a,b,c"])
def test_what_a_caller_puts_before_a_proxys_entry_is_not_believed(ask, forged):
    ask = ask(1)
    use_up(ask, CALLER)

    assert ask(f"{forged}, {CALLER}") == 429


def test_behind_two_proxies_the_outer_ones_entry_counts(ask):
    ask = ask(2)
    use_up(ask, f"{CALLER}, 10.0.0.2")

    assert ask(f"{OTHER}, {CALLER}, 10.0.0.3") == 429
    assert ask(f"{CALLER}, {OTHER}, 10.0.0.2") == 401


@pytest.mark.parametrize("forwarded", ["", "unknown", "_hidden", "203.0.113.7, not-an-address"])
def test_without_an_entry_to_believe_the_peer_is_the_caller(ask, forwarded):
    ask = ask(1)
    use_up(ask, forwarded)

    assert ask("") == 429


@given(
    forged=st.lists(st.one_of(addresses, st.text(max_size=20))),
    seen=st.lists(addresses, min_size=1, max_size=4),
)
def test_the_entries_of_own_proxies_decide_whatever_comes_before(forged, seen):
    forwarded = ", ".join([*forged, *seen])

    assert address_behind(forwarded, len(seen)) == seen[0]


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("203.0.113.7:4711", "203.0.113.7"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("203.0.113.7:80:80", None),
        ("", None),
    ],
)
def test_an_address_is_the_same_however_a_proxy_spells_it(entry, address):
    assert address_behind(entry, 1) == address


def test_no_proxy_is_believed_unless_it_is_counted():
    assert address_behind(CALLER, 0) is None
