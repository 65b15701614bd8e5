"""A Redis that others could reach is not used: it holds every prompt."""

import pytest
from pydantic import ValidationError

from ops.settings import Settings


@pytest.mark.parametrize(
    "url",
    [
        "redis://redis.internal:6379/0",
        "redis://10.0.0.5",
        "redis://[fd00::5]:6379",
        "redis://0.0.0.0:6379",
        "redis://user@redis.internal",
        "redis://:@redis.internal",
        "redis://127.0.0.1.example.com",
        "redis://localhost.example.com",
    ],
)
def test_one_elsewhere_without_password_or_tls_ends_the_start(url):
    with pytest.raises(ValidationError) as refused:
        Settings(redis_url=url)

    assert "redis_allow_insecure" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "redis://127.8.0.1",
        "redis://localhost:6379/0",
        "redis://[::1]:6379",
        "redis://:secret@redis.internal",
        "redis://promptmill_api:secret@10.0.0.5",
        "rediss://redis.internal",
    ],
)
def test_one_that_is_guarded_is_used(url):
    assert Settings(redis_url=url).redis_url == url


def test_the_operator_can_say_that_it_is_meant():
    url = "redis://redis.internal"

    assert Settings(redis_url=url, redis_allow_insecure=True).redis_url == url
