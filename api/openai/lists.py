"""OpenAI's lists: which page a query asks for, and the list object. Knows not what is listed."""

from typing import Any

from api.requests import read_query
from queueing.errors import FailureCode, RequestError
from queueing.pages import PageQuery


def read_page_query(
    *filters: str, default_limit: int, max_limit: int
) -> tuple[PageQuery, dict[str, str]]:
    """Return the page that is asked for, and the values of the other known parameters."""
    values = read_query("after", "limit", *filters)
    order = values.pop("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(FailureCode.INVALID_REQUEST, "order must be asc or desc", "order")
    limit = values.pop("limit", str(default_limit))
    is_number = limit.isascii() and limit.isdigit() and len(limit) <= 6
    if not is_number or not 1 <= int(limit) <= max_limit:
        message = f"limit must be an integer from 1 to {max_limit}"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "limit")
    query = PageQuery(int(limit), after=values.pop("after", None), ascending=order == "asc")
    return query, values


def list_object(data: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:  # noqa: FBT001  a field
    """Return a page in OpenAI's shape."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
