"""TrustedProxies: whose request it is, when it comes through proxies of the operator's own.

Each proxy adds, at the end of X-Forwarded-For, the address it was asked from. So of what stands
there only as many entries as there are own proxies are theirs, counted from the end; whatever comes
before was sent by the caller, who may have made it up.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication


class TrustedProxies:
    """Puts the caller's address in the place of the nearest proxy's, for the application inside."""

    def __init__(self, app: "WSGIApplication", num_proxies: int) -> None:
        self._app = app
        self._num_proxies = num_proxies

    def __call__(
        self,
        environ: dict[str, Any],  # WSGI's own
        start_response: "StartResponse",
    ) -> Iterable[bytes]:
        """Serve one request."""
        forwarded = environ.get("HTTP_X_FORWARDED_FOR", "")
        address = address_behind(forwarded, self._num_proxies)
        if address is not None:
            environ["REMOTE_ADDR"] = address
        return self._app(environ, start_response)


def address_behind(forwarded: str, num_proxies: int) -> str | None:
    """Return the address that the outermost own proxy saw.

    None when there are fewer entries than proxies, or the entry is no address: then the peer's own
    is the only one that nobody made up.
    """
    entries = forwarded.split(",")
    if not 0 < num_proxies <= len(entries):
        return None
    entry = entries[-num_proxies].strip()
    try:
        return str(ip_address(_without_port(entry)))
    except ValueError:
        return None


def _without_port(entry: str) -> str:
    """Return an entry without the port that some proxies add, with which none would be the same."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    host, colon, _ = entry.partition(":")
    return host if colon and entry.count(":") == 1 else entry
