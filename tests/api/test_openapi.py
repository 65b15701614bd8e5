"""The document is that of the code: valid, complete, and the same as the one kept in docs/."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from openapi_spec_validator import validate

from api.operations import OPERATIONS
from ops.cli import main

KEPT = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


@pytest.fixture
def document(client):
    return client.get("/openapi.json").json


def test_the_document_is_valid_openapi(document):
    validate(document)

    assert document["openapi"] == "3.1.0"


def test_every_route_is_described_and_nothing_else(api):
    assert {rule.endpoint for rule in api.app.url_map.iter_rules()} == OPERATIONS.keys()


def test_the_document_that_is_kept_is_the_one_that_is_served(document):
    assert json.loads(KEPT.read_text()) == document, "run: promptmill openapi > docs/openapi.json"


def test_the_command_prints_the_document_that_is_kept():
    printed = CliRunner().invoke(main, ["openapi"])

    assert printed.exit_code == 0
    assert printed.stdout == KEPT.read_text()


def test_every_operation_has_words_and_a_name_of_its_own(document):
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    names = [operation["operationId"] for operation in operations]

    assert len(set(names)) == len(names)
    assert [one["operationId"] for one in operations if not one["summary"]] == []


def test_the_page_shows_every_path_and_loads_nothing(client, document):
    page = client.get("/docs")

    assert page.status_code == 200
    assert [path for path in document["paths"] if path not in page.text] == []
    loading = ("<script", "<link", "<img", "src=", "@import")
    assert [word for word in loading if word in page.text] == []
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_the_documentation_is_open_to_everybody(api, path):
    assert api.app.test_client().get(path).status_code == 200
