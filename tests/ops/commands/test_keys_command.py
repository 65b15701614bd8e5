import pytest
from click.testing import CliRunner

from ops.cli import main
from queueing.store import connect
from queueing.tenants import TenantStore


@pytest.fixture
def run(redis_url, monkeypatch):
    """Return a way to run a command of `promptmill keys` against the test's server."""
    monkeypatch.setenv("PROMPTMILL_REDIS_URL", redis_url)

    def command(*words):
        return CliRunner().invoke(main, ["keys", *words])

    return command


@pytest.fixture
def tenants(redis_url):
    with connect(redis_url) as client:
        yield TenantStore(client)


def test_a_new_key_is_printed_alone_so_that_a_script_can_keep_it(run, tenants):
    created = run("create", "acme", "--name", "laptop")

    assert created.exit_code == 0
    assert tenants.owner_of(created.stdout.strip()).name == "acme"


def test_keys_are_listed_without_their_text_and_revoked_by_id(run, tenants):
    text = run("create", "acme", "--name", "laptop").stdout.strip()
    (key,) = tenants.keys_of("acme")

    before = run("list").stdout
    revoked = run("revoke", key.id)
    after = run("list", "--tenant", "acme").stdout

    assert text not in before
    assert before.split() == [key.id, "acme", f"pm_...{text[-4:]}", "active", "laptop"]
    assert revoked.exit_code == 0
    assert "revoked" in after
    assert tenants.owner_of(text) is None


def test_what_a_tenant_may_do_is_said_and_told(run):
    run("create", "acme")

    run(
        *("limit", "acme", "--tier", "free", "--priority", "bulk", "--model", "small"),
        *("--requests-per-min", "60", "--tokens-per-day", "1000"),
    )

    assert run("tenants").stdout.strip() == (
        "acme  tier: free  priorities: bulk  models: small  requests/min: 60"
        "  tokens/min: no limit  tokens/day: 1000"
    )


@pytest.mark.parametrize(
    "words", [("revoke", "key_unknown"), ("create", "Not A Name"), ("limit", "a:b")]
)
def test_what_cannot_be_done_is_one_line_and_status_one(run, words):
    refused = run(*words)

    assert refused.exit_code == 1
    assert refused.output.startswith("Error: ")
    assert refused.output.count("\n") == 1
