"""Request bodies, of HTTP and of batch lines alike: strict JSON and strict validation.

Owns how bytes become a JSON object and how a failed validation becomes the one RequestError that
names its field. Knows no field of any body. What is refused here is the caller's fault and never
quotes what the caller wrote.
"""

import json
import math
import re
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from queueing.errors import FailureCode, RequestError

MAX_DEPTH = 64
# Begins the tags of unions, which are no part of a field's path.
TAG = "<"

_MAX_NAME = 64

_BYTE_ORDER_MARKS = {
    b"\xef\xbb\xbf": "UTF-8",
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# Escapes in order of their place: a whole pair is passed over, a half of one is captured, any other
# escape is passed.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_ANY_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class StrictModel(BaseModel):
    """Base of every body: refuses unknown fields and values of another type than the field's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Body = TypeVar("Body", bound=BaseModel)


def parse_object(data: bytes) -> dict[str, Any]:
    """Read bytes as one JSON object; raises RequestError for what can be read in two ways.

    Refused beside broken syntax: duplicate keys, NaN and infinities, numbers too long or too large,
    nesting beyond MAX_DEPTH, lone surrogates, byte order marks, and every encoding but UTF-8.
    """
    text = _decode(data)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_short_integer,
        )
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise _invalid(f"nested deeper than {MAX_DEPTH}") from error
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise _invalid(f"nested deeper than {MAX_DEPTH}")
    if not isinstance(value, dict):
        raise RequestError(FailureCode.INVALID_REQUEST, "the body must be a JSON object")
    return value


def validate(model: type[Body], body: dict[str, Any]) -> Body:
    """Return `body` as `model`; raises RequestError that names the first field at fault.

    A field's description says what it takes and ends up in the message.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        # The values are left out: they may be a prompt. Its cause would carry them, hence none.
        details = error.errors(include_url=False, include_context=True, include_input=False)
    raise _refusal(model, details)


def _decode(data: bytes) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            raise _invalid(f"starts with a {encoding} byte order mark; send UTF-8 without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # Its cause would carry the bytes, hence none.
        offset = error.start
    else:
        _refuse_lone_surrogate(text)
        return text
    raise _invalid(f"not UTF-8 at byte {offset}")


def _refuse_lone_surrogate(text: str) -> None:
    if _ANY_SURROGATE.search(text) is None:
        return
    for found in _ESCAPE.finditer(text):
        if found[1] is not None:
            raise _invalid(f"lone surrogate at character {found.start()}")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _invalid("an object has the same key twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _invalid("a number is too large")
    return number


def _short_integer(digits: str) -> int:
    # Far above any field's range and far below the 4,300 digits at which int() itself refuses.
    if len(digits) > 40:
        raise _invalid("an integer has more than 40 digits")
    return int(digits)


def _is_deeper(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [inner for outer in level for inner in _containers_in(outer)]
        if not level:
            return False
    return True


def _containers_in(value: object) -> list[object]:
    match value:
        case dict():
            inner = list(value.values())
        case list():
            inner = value
        case _:
            return []
    return [one for one in inner if isinstance(one, dict | list)]


def _invalid(reason: str) -> RequestError:
    return RequestError(FailureCode.INVALID_JSON, f"invalid JSON: {reason}")


def _refusal(model: type[BaseModel], details: list[ErrorDetails]) -> RequestError:
    first = details[0]
    path = [step for step in first["loc"] if not str(step).startswith(TAG)]
    param = "".join(_spelled(step) for step in path).removeprefix(".") or None
    if first["type"] == "extra_forbidden":
        return RequestError(FailureCode.UNKNOWN_PARAMETER, f"unknown parameter: {param}", param)
    reason = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    wanted = f" ({field.description})" if field is not None and field.description else ""
    return RequestError(FailureCode.INVALID_REQUEST, f"{param or 'body'}: {reason}{wanted}", param)


def _spelled(step: str | int) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{step[:_MAX_NAME]}"
