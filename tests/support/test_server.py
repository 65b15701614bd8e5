import pytest
import redis

from tests.support.server import RedisServer, embedded_binary


def test_what_was_acknowledged_outlives_a_kill(redis_server, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.set("kept", "yes")

        redis_server.restart()

        assert client.get("kept") == b"yes"


def test_the_address_is_empty_at_the_start_of_a_test(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0


def test_a_server_that_cannot_start_says_why(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "appendonlydir").write_text("not a folder")
    server = RedisServer(folder, embedded_binary())

    with pytest.raises(RuntimeError, match="appendonlydir"):
        server.start()
