"""Raw JSON against a client's own models: nothing of another type, and nothing they do not know."""

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def strictly(model: type[Model], payload: str | bytes) -> Model:
    """Return the payload as the model; fail for a wrong type, a missing field, an unknown one."""
    value = model.model_validate_json(payload, strict=True)
    unknown = list(_unknown_in(value, model.__name__))
    assert not unknown, f"the client does not know {unknown}"
    return value


def _unknown_in(value: Any, path: str) -> list[str]:
    match value:
        case BaseModel():
            found = [f"{path}.{name}" for name in value.model_extra or ()]
            for name in type(value).model_fields:
                found += _unknown_in(getattr(value, name), f"{path}.{name}")
            return found
        case list():
            return [
                name
                for place, item in enumerate(value)
                for name in _unknown_in(item, f"{path}[{place}]")
            ]
        case _:
            return []
