import pytest

from queueing.errors import RequestError
from queueing.model_routes import ModelRoutes, RouteChange, RouteWatch
from queueing.served_model import ServedModel, ServedModels
from queueing.store import connect
from tests.support.fake_engine import byte_tokenizer
from tests.support.server import RedisServer, embedded_binary


@pytest.fixture
def routes(client):
    return ModelRoutes(client)


def served(used_for):
    names = ("large", "small", "third")
    return ServedModels((ServedModel(name, 64, 8, byte_tokenizer()) for name in names), used_for)


def watch_of(routes):
    return RouteWatch(routes, lambda _change: None)


def test_without_a_route_each_model_is_itself(routes):
    assert served(watch_of(routes).used_for).find("large").name == "large"


def test_a_routed_name_is_given_the_other_model(routes):
    assert routes.put("large", "small") == RouteChange("large", None, "small")

    models = served(watch_of(routes).used_for)

    assert models.find("large").name == "small"
    assert models.find_itself("large").name == "large"


def test_a_route_is_not_followed_twice(routes):
    routes.put("large", "small")
    routes.put("small", "large")

    models = served(watch_of(routes).used_for)

    assert [models.find("large").name, models.find("small").name] == ["small", "large"]


def test_a_route_to_a_model_that_is_not_served_or_not_allowed_changes_nothing(routes):
    routes.put("large", "small")
    routes.put("third", "nobody")

    models = served(watch_of(routes).used_for)

    assert models.find("third").name == "third"
    assert models.among(["large"]).find("large").name == "large"


def test_a_routed_name_has_to_be_one_that_the_caller_may_use(routes):
    routes.put("large", "small")

    models = served(watch_of(routes).used_for).among(["small"])

    with pytest.raises(RequestError):
        models.find("large")


def test_a_route_can_be_taken_back(routes):
    routes.put("large", "small")

    assert routes.put("large", None) == RouteChange("large", "small", None)
    assert routes.read() == {}


def test_a_watch_tells_each_change_once(routes):
    changes: list[RouteChange] = []
    routes.put("large", "small")
    watch = RouteWatch(routes, changes.append)

    watch.used_for("large")
    watch.used_for("large")

    assert changes == [RouteChange("large", None, "small")]


def test_without_a_store_a_process_goes_by_what_it_knew_last(tmp_path, monkeypatch):
    server = RedisServer(tmp_path / "redis", embedded_binary())
    server.start()
    with connect(server.url) as client:
        routes = ModelRoutes(client)
        routes.put("large", "small")
        watch = watch_of(routes)
        watch.used_for("large")
        server.stop()

        monkeypatch.setattr("queueing.model_routes._LOOK_EVERY_S", 0.0)

        assert watch.used_for("large") == "small"
        assert watch.used_for("large") == "small"
