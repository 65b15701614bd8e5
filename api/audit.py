"""Audit: a line for the operator about each id that was asked for in vain. To the client another
tenant's object and one that does not exist are the same 404; here they are two events.

Looks after the answer is made, and asks the store the same question either way, so that the time of
an answer does not tell what its words withhold. Knows no route.
"""

import re
from collections.abc import Iterator

import structlog
from flask import Flask, Response, g, request

from ops.logs import Event
from queueing.errors import StoreUnavailable
from queueing.owners import PREFIXES, Owners

_ID = re.compile(f"({'|'.join(map(re.escape, PREFIXES))})[0-9A-Za-z]{{22}}")

log = structlog.stdlib.get_logger(__name__)


def audit_ids(app: Flask, owners: Owners) -> None:
    """Leave a line about every id in a path, a cursor or a body that was answered with 404."""

    @app.after_request
    def _audit(response: Response) -> Response:
        if response.status_code == 404 and "tenant" in g:
            try:
                for object_id in _sought_ids(response):
                    _note(object_id, owners.owner_of(object_id))
            except StoreUnavailable as error:
                log.warning(Event.STORE_LOST, reason=error.kind)
        return response


def _sought_ids(response: Response) -> Iterator[str]:
    """Return the ids that a refused request named: where the error says, else in its path."""
    param = response.get_json()["error"]["param"]
    sought: list[object]
    if param is None:
        sought = [*(request.view_args or {}).values()]
    else:
        sought = [request.args.get(param), g.get("fields", {}).get(param)]
    return (one for one in sought if isinstance(one, str) and _ID.fullmatch(one))


def _note(object_id: str, owner: str | None) -> None:
    if owner is None:
        log.info(Event.UNKNOWN_ID_SOUGHT, object_id=object_id)
    elif owner != g.tenant.name:
        log.warning(Event.FOREIGN_ID_SOUGHT, object_id=object_id, owner=owner)
