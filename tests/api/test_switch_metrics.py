import pytest
from prometheus_client import CollectorRegistry, generate_latest

from api.switch_metrics import SwitchStates
from queueing.model_routes import ModelRoutes
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard

NAME = "promptmill_degradation_switch_active"


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as client:
        yield client


def told(client):
    """Return what a scrape tells of each switch."""
    registry = CollectorRegistry()
    SwitchStates(SwitchBoard(client), ModelRoutes(client), registry)
    lines = generate_latest(registry).decode().splitlines()
    samples = [line.partition("{")[2] for line in lines if line.startswith(f"{NAME}{{")]
    return dict(sample.removeprefix('switch="').split('"} ') for sample in samples)


def test_every_switch_but_draining_is_told_as_on_or_off(client):
    SwitchBoard(client).flip(Switch.MAX_TOKENS, 128)
    SwitchBoard(client).flip(Switch.DRAIN, 1)

    assert told(client) == {
        "shed_bulk": "0.0",
        "shed_standard": "0.0",
        "max_tokens": "1.0",
        "reuse_answers": "0.0",
        "use_model": "0.0",
    }


def test_another_model_in_use_is_a_switch_that_is_on(client):
    ModelRoutes(client).put("large", "small")

    assert told(client)["use_model"] == "1.0"


def test_while_the_store_is_away_nothing_is_told():
    with connect("redis://127.0.0.1:1/0") as nowhere:
        assert told(nowhere) == {}
