"""Which store the operator's commands speak to."""

from ops.connection import Connection
from ops.settings import Settings
from ops.up import connection_file


def store_url(settings: Settings) -> str:
    """Return the store that settings name; else that of the stack that runs here, if one does."""
    if "redis_url" not in settings.model_fields_set:
        try:
            return Connection.read(connection_file(settings)).store_url or settings.redis_url
        except FileNotFoundError:
            pass  # no stack: the default of the settings
    return settings.redis_url
