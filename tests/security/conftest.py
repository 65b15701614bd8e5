"""The API of tests/api, for tests that attack it."""

from tests.api.conftest import api, client, queue, settings, tiny_folder

__all__ = ["api", "client", "queue", "settings", "tiny_folder"]
