"""Every command of docs/tenants.md and docs/security.md is run as it stands there."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.app import create_api
from ops.settings import Settings
from queueing.store import connect
from queueing.tenants import Tenant, TenantStore
from tests.support.api_server import ApiServer

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADMIN_KEY = "admin-key-of-the-tests"


def examples(page):
    return re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture
def environment(redis_url, tmp_path):
    """Run an API with an admin's side, and return what the pages take for granted."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        admin_port = probe.getsockname()[1]
    keys = {"api_key": "pm_test-key", "admin_key": ADMIN_KEY, "admin_port": str(admin_port)}
    server = ApiServer(tmp_path / "api.log", {"redis_url": redis_url, **keys})
    server.start()
    with connect(redis_url) as client:
        tenants = TenantStore(client)
        tenants.put(Tenant("reader"))
        _, api_key = tenants.create_key("reader")
    yield {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "HOME": str(tmp_path),
        "PROMPTMILL_REDIS_URL": redis_url,
        "URL": server.url,
        "KEY": api_key,
        "ADMIN": f"http://127.0.0.1:{admin_port}",
        "ADMIN_KEY": ADMIN_KEY,
    }
    server.stop()


@pytest.mark.parametrize("page", ["tenants.md", "security.md"])
def test_the_commands_of_a_page_run_in_its_order(environment, page):
    script = "set -e -o pipefail\n" + "\n".join(examples(page))
    # What the server refuses is a failure here too.
    script = script.replace("curl -s", "curl -sS --fail-with-body")

    ran = subprocess.run(
        ["/bin/bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_page_tells_of_every_route_of_the_admins():
    page = (DOCS / "security.md").read_text()
    api = create_api(Settings(api_key=SecretStr("x"), admin_key=SecretStr(ADMIN_KEY)))
    assert api.admin is not None
    rules = {rule.rule for rule in api.admin.url_map.iter_rules()}

    told = {
        re.sub("<[^>]+>", "<>", route) for route in re.findall(r"`[A-Z, `]*(/admin/[^`]+)`", page)
    }

    assert told == {re.sub("<[^>]+>", "<>", rule) for rule in rules}
