"""The API's own documentation: /openapi.json and a page made from it, open to whoever reaches them.

The page loads nothing from anywhere and runs no script.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, jsonify
from jinja2 import Environment, FileSystemLoader, StrictUndefined

OPEN_ENDPOINTS = frozenset({"docs.document", "docs.page"})

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def docs_blueprint(make_document: Callable[[], dict[str, Any]]) -> Blueprint:
    """Return the routes; the document is made at the first request, once all routes are there."""
    blueprint = Blueprint("docs", __name__)
    document_once = cache(make_document)

    @blueprint.get("/openapi.json")
    def document() -> Response:
        """Describe this API in OpenAPI 3.1."""
        return jsonify(document_once())

    @blueprint.get("/docs")
    def page() -> Response:
        """Show the same to a reader."""
        response = Response(_render(document_once()), mimetype="text/html")
        response.headers["Content-Security-Policy"] = _POLICY
        return response

    return blueprint


def _render(document: dict[str, Any]) -> str:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    by_tag: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            told = {"path": path, "method": method.upper(), **operation}
            by_tag.setdefault(operation["tags"][0], []).append(told)
    return templates.get_template("docs.html").render(document=document, by_tag=by_tag)
