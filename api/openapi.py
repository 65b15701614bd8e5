"""The OpenAPI 3.1 document: made from the routes, their docstrings and their pydantic models.

Nothing is written twice: a path and its parameters are the rule's, the words its handler's, the
fields those that validation itself goes by. What no code says stands in operations.py.
"""

import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from flask import Flask
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from werkzeug.routing import Rule

from api.operations import FORM, JSON, Answer, Operation, Query
from api.requests import ObjectId

# What can happen to any request that needs a key.
_ALWAYS = (400, 401, 429, 503)
_WITH_BODY = (413, 415)
_WITH_ID = (404,)
_VARIABLE = re.compile(r"<(?:[^<>:]+:)?([a-z_]+)>")
_DESCRIPTION = (
    "Asynchronous LLM jobs: submit prompts with priorities and deadlines, and get the answers by"
    " polling, by webhook or as bulk files. The paths tagged OpenAI, Files and batches and Models"
    " are served to OpenAI's own clients."
)
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        },
        "request_id": {"type": "string"},
    },
    "required": ["error", "request_id"],
}

# JSON Schema has no type of its own, hence Any.
Models = Mapping[tuple[type[BaseModel], JsonSchemaMode], dict[str, Any]]


def openapi_document(
    app: Flask, operations: Mapping[str, Operation], open_endpoints: Collection[str]
) -> dict[str, Any]:
    """Return the document of an application's routes; KeyError for one without an operation."""
    models, schemas = _schemas_of(operations)
    paths: dict[str, dict[str, Any]] = {}
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: (rule.rule, rule.endpoint)):
        operation = operations[rule.endpoint]
        (method,) = (rule.methods or set()) - {"HEAD", "OPTIONS"}
        is_open = rule.endpoint in open_endpoints
        described = _operation_of(app, rule, operation, models, is_open=is_open)
        paths.setdefault(_VARIABLE.sub(r"{\1}", rule.rule), {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "promptmill",
            "version": version("promptmill"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas | {"Error": _ERROR},
        },
    }


def _schemas_of(operations: Mapping[str, Operation]) -> tuple[Models, dict[str, Any]]:
    """Return each model's reference and all definitions."""
    taken = {one.body for one in operations.values() if one.body}
    told = {one.answer.model for one in operations.values() if one.answer.model}
    named: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        *((model, "validation") for model in taken),
        *((model, "serialization") for model in told),
    ]
    named.sort(key=lambda pair: pair[0].__name__)
    found, definitions = models_json_schema(named, ref_template="#/components/schemas/{model}")
    return {key: found[key] for key in named}, definitions["$defs"]


def _operation_of(
    app: Flask, rule: Rule, operation: Operation, models: Models, *, is_open: bool
) -> dict[str, Any]:
    words = (app.view_functions[rule.endpoint].__doc__ or "").strip()
    summary, _, description = words.partition("\n\n")
    described: dict[str, Any] = {
        "operationId": rule.endpoint.replace(".", "_").replace("__", "_"),
        "summary": " ".join(summary.split()).rstrip("."),
        "tags": [operation.tag],
        "parameters": [
            *_path_parameters(rule),
            *(_parameter("query", query) for query in operation.query),
            *(_parameter("header", header) for header in operation.headers),
        ],
        "responses": {
            str(operation.answer.status): _answer(operation.answer, models),
            **{str(status): _refusal(status) for status in _errors(rule, operation, is_open)},
        },
    }
    if description:
        described["description"] = " ".join(description.split())
    if is_open:
        described["security"] = []
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.is_body_required,
            "content": {JSON: {"schema": models[operation.body, "validation"]}},
        }
    if operation.form is not None:
        described["requestBody"] = {
            "required": True,
            "content": {FORM: {"schema": operation.form}},
        }
    return described


def _path_parameters(rule: Rule) -> list[dict[str, Any]]:
    parameters = []
    for name in _VARIABLE.findall(rule.rule):
        schema: dict[str, Any] = {"type": "string"}
        converter = rule._converters[name]  # noqa: SLF001  werkzeug has no public way to it
        if isinstance(converter, ObjectId):
            schema["pattern"] = f"^{converter.regex}$"
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return parameters


def _parameter(place: str, query: Query) -> dict[str, Any]:
    return {
        "name": query.name,
        "in": place,
        "required": query.required,
        "description": query.description,
        "schema": query.schema,
    }


def _errors(rule: Rule, operation: Operation, is_open: bool) -> list[int]:  # noqa: FBT001  a fact
    statuses = set(operation.errors)
    if not is_open:
        statuses.update(_ALWAYS)
    if rule.arguments:
        statuses.update(_WITH_ID)
    if operation.body is not None or operation.form is not None:
        statuses.update(_WITH_BODY)
    return sorted(statuses)


def _answer(answer: Answer, models: Models) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(answer.status).phrase}
    if answer.status == HTTPStatus.NO_CONTENT:
        return described
    content: dict[str, Any] = {media: {} for media in answer.media}
    if answer.model is not None:
        content[JSON] = {"schema": models[answer.model, "serialization"]}
    return described | {"content": content}


def _refusal(status: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase,
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
