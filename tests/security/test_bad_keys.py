"""Guessing keys, and what comes instead of one."""

import pytest

from api import limits
from queueing.api_key import new_api_key
from queueing.tenants import Tenant, TenantStore
from tests.api.conftest import API_KEY


@pytest.fixture
def ask(api):
    """Return a way to ask with a key from an address."""

    def asked(api_key, address="198.51.100.7"):
        return api.app.test_client().get(
            "/v1/models",
            headers={"Authorization": f"Bearer {api_key}"},
            environ_overrides={"REMOTE_ADDR": address},
        )

    return asked


@pytest.fixture
def now(monkeypatch):
    """Hold the limiter's clock still."""
    clock = {"s": 1_000.0}
    monkeypatch.setattr(limits, "monotonic", lambda: clock["s"])
    return clock


@pytest.mark.usefixtures("now")
def test_of_a_thousand_bad_keys_a_few_are_401_and_all_others_429(ask):
    answers = [ask(new_api_key()) for _ in range(1_000)]

    statuses = [answer.status_code for answer in answers]
    assert statuses == [401] * 20 + [429] * 980
    assert {answer.headers["Retry-After"] for answer in answers[20:]} == {"3"}
    assert answers[-1].json["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.usefixtures("now")
def test_a_blocked_address_blocks_no_other_one(ask):
    for _ in range(30):
        ask("bad")

    assert ask("bad", "198.51.100.8").status_code == 401


@pytest.mark.usefixtures("now")
def test_all_addresses_of_an_ipv6_network_count_as_one(ask):
    for number in range(30):
        ask("bad", f"2001:db8:1:1::{number:x}")

    assert ask("bad", "2001:db8:1:1:ffff::1").status_code == 429
    assert ask("bad", "2001:db8:1:2::1").status_code == 401


@pytest.mark.usefixtures("now")
def test_an_ipv4_address_is_the_same_however_it_is_shown(ask):
    for _ in range(30):
        ask("bad", "::ffff:198.51.100.7")

    assert ask("bad", "198.51.100.7").status_code == 429
    assert ask("bad", "::ffff:198.51.100.8").status_code == 401


@pytest.mark.usefixtures("now")
def test_who_has_a_key_is_let_in_from_a_blocked_address(ask, api):
    tenants = TenantStore(api.client)
    tenants.put(Tenant("acme"))
    _, text = tenants.create_key("acme")
    for _ in range(30):
        ask("bad")

    assert ask(API_KEY).status_code == 200
    assert ask(text).status_code == 200


def test_a_blocked_address_may_try_again_later(ask, now):
    for _ in range(30):
        ask("bad")

    now["s"] += 3

    assert [ask("bad").status_code for _ in range(2)] == [401, 429]


@pytest.mark.usefixtures("now")
def test_addresses_that_are_remembered_are_bounded():
    bad_keys = limits.BadKeys()

    for number in range(20_000):
        bad_keys.count(f"address {number}")
    for _ in range(19):
        bad_keys.count("address 19999")

    with pytest.raises(limits.RateLimited):
        bad_keys.count("address 19999")


def test_what_cannot_be_a_key_costs_the_store_nothing(ask, api):
    before = api.client.info("stats")["total_commands_processed"]

    for key in ("", "pm_", "pm_" + "a" * 38, "x" * 10_000, "k\u00fcy", "a\u0000b"):
        ask(key)

    # The two questions themselves are counted too.
    assert api.client.info("stats")["total_commands_processed"] - before <= 2


def test_keys_are_compared_by_digests_of_one_length_in_constant_time(ask, monkeypatch):
    compared = []

    def compare(one, other):
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    near_misses = [API_KEY[:length] + "x" for length in range(len(API_KEY))]

    statuses = {
        ask(key, f"198.51.100.{number}").status_code for number, key in enumerate(near_misses)
    }

    assert statuses == {401}
    assert len(compared) >= len(near_misses)
    assert {len(side) for sides in compared for side in sides} == {64}


@pytest.mark.parametrize("name", ["api_key", "key", "token", "access_token", "authorization"])
def test_a_key_in_the_address_is_no_key(api, name):
    answer = api.app.test_client().get(f"/v1/models?{name}={API_KEY}")

    assert answer.status_code == 401
    assert API_KEY not in answer.text
