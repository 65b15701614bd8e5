"""The form an answer must have: plain text, any JSON object, or JSON that keeps to a schema.

Chats and responses spell it differently and mean the same. `strict` may be either: an answer is
always held to its schema, token by token. Whether a schema can be kept to depends on the model and
is checked by ServedModel.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from queueing.body import StrictModel
from queueing.errors import FailureCode, RequestError

_ANY_OBJECT = json.dumps({"type": "object"})

_Kind = Annotated[
    Literal["text", "json_object", "json_schema"],
    Field(description="text, json_object or json_schema"),
]
_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class SchemaSpec(StrictModel):
    """A schema as chats carry it."""

    name: _Name
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ChatFormat(StrictModel):
    """The `response_format` of a chat."""

    type: _Kind
    json_schema: SchemaSpec | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        spec = self.json_schema
        has_schema = spec is not None and spec.definition is not None
        _refuse_unless(has_schema, self.type, "response_format.json_schema")
        return self

    def as_schema(self) -> str | None:
        """Return the JSON schema to keep to; None for plain text."""
        spec = self.json_schema
        return _schema_of(self.type, None if spec is None else spec.definition)


class TextFormat(StrictModel):
    """The `text.format` of a response."""

    type: _Kind
    name: _Name | None = None
    description: str | None = None
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        _refuse_unless(self.definition is not None, self.type, "text.format.schema")
        if self.type == "json_schema" and self.name is None:
            message = "text.format.name: a schema needs a name"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "text.format.name")
        return self

    def as_schema(self) -> str | None:
        """Return the JSON schema to keep to; None for plain text."""
        return _schema_of(self.type, self.definition)


def _schema_of(kind: str, definition: dict[str, Any] | None) -> str | None:
    if kind == "text":
        return None
    return _ANY_OBJECT if definition is None else json.dumps(definition)


def _refuse_unless(has_schema: bool, kind: str, param: str) -> None:  # noqa: FBT001  one of two facts to compare
    if has_schema != (kind == "json_schema"):
        message = f"{param}: goes with type json_schema, and only with that"
        raise RequestError(FailureCode.INVALID_REQUEST, message, param)
