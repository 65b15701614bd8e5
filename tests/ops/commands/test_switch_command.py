import json

import pytest
from click.testing import CliRunner

from ops.cli import main
from queueing.model_routes import ModelRoutes
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def run(redis_url, monkeypatch):
    """Return a way to run `promptmill switch` against the test's server."""
    monkeypatch.setenv("PROMPTMILL_REDIS_URL", redis_url)

    def command(*words):
        return CliRunner().invoke(main, ["switch", *words])

    return command


def log_lines(result):
    return [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]


def test_every_switch_is_listed_with_what_it_does(run):
    listed = run().stdout.splitlines()

    assert [line.split()[:2] for line in listed] == [
        *([switch.value, "off"] for switch in Switch),
        ["use_model", "off"],
    ]
    assert all(len(line.split()) > 4 for line in listed)


def test_a_flip_leaves_a_line_about_who_did(run, client):
    flipped = run("reuse_answers", "600")

    assert SwitchBoard(client).read() == {Switch.REUSE_ANSWERS: 600}
    (line,) = log_lines(flipped)
    assert (line["switch"], line["before"], line["now"]) == ("reuse_answers", None, 600)
    assert line["by"]


def test_a_model_is_used_for_another_and_for_itself_again(run, client):
    routed = run("use_model", "large=small")
    while_on = ModelRoutes(client).read()

    back = run("use_model", "large=off")

    assert while_on == {"large": "small"}
    assert "large=small" in routed.stdout
    assert ModelRoutes(client).read() == {}
    (line,) = log_lines(back)
    assert (line["switch"], line["before"], line["now"]) == ("use_model large", "small", None)


@pytest.mark.parametrize("value", ["large", "large=", "=small", "same=same"])
def test_what_is_no_route_is_refused(run, client, value):
    refused = run("use_model", value)

    assert refused.exit_code == 2
    assert ModelRoutes(client).read() == {}
