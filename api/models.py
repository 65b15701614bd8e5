"""The models of this installation: read from their folders, and told in OpenAI's shape.

Owns the routes under /v1/models. Reads manifests and tokenizers only; weights, tensors and devices
are the workers' business.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, jsonify

from api.auth import current_tenant
from api.requests import read_query
from engine.grammar import Grammars
from engine.registry import load_manifest
from engine.tokenizer import Tokenizer
from queueing.errors import FailureCode, RequestError
from queueing.served_model import ServedModel

_OWNER = "promptmill"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is told of a model. `created_s` is when its folder was registered."""

    served: ServedModel
    created_s: int


def load_model_card(folder: Path, default_max_tokens: int) -> ModelCard:
    """Read what the API needs of a model folder; raises ModelFolderError."""
    manifest = load_manifest(folder)
    tokenizer = Tokenizer.load(folder)
    served = ServedModel(
        name=manifest.name,
        context_length=manifest.context_length,
        default_max_tokens=default_max_tokens,
        encoder=tokenizer,
        schemas=Grammars(tokenizer),
    )
    return ModelCard(served, int((folder / "manifest.json").stat().st_mtime))


def models_blueprint(cards: Sequence[ModelCard]) -> Blueprint:
    """Return the routes that list and describe models."""
    blueprint = Blueprint("models", __name__, url_prefix="/v1/models")
    objects = {card.served.name: _model_object(card) for card in cards}

    @blueprint.get("")
    def list_models() -> Response:
        """List the models that are served to this key."""
        read_query()
        names = filter(current_tenant().may_use, sorted(objects))
        return jsonify(object="list", data=[objects[name] for name in names])

    @blueprint.get("/<path:name>")
    def retrieve(name: str) -> Response:
        """Return one model."""
        read_query()
        if name not in objects or not current_tenant().may_use(name):
            raise RequestError(FailureCode.MODEL_NOT_FOUND, "no such model is served", "model")
        return jsonify(objects[name])

    return blueprint


def _model_object(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.served.name,
        "object": "model",
        "created": card.created_s,
        "owned_by": _OWNER,
    }
