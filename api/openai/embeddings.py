"""Embeddings: POST /v1/embeddings, one job for each input, answered together."""

from flask import Blueprint, Response, jsonify

from api.auth import current_tenant
from api.idempotency import read_idempotency_key
from api.openai.group_answers import GroupAnswers
from api.openai.orders import Surface, group_order_of
from api.requests import read_object, read_query
from queueing.openai_embedding import embedding_list, parse_embedding_call, size_embeddings
from queueing.served_model import ServedModels

_SURFACE = Surface("embeddings", "embd-")


class EmbeddingRoutes:
    """The handler of /v1/embeddings. It holds nothing of a request."""

    def __init__(self, answers: GroupAnswers, models: ServedModels) -> None:
        self._answers = answers
        self._models = models

    def blueprint(self) -> Blueprint:
        """Return the route, to be registered once."""
        blueprint = Blueprint("embeddings", __name__, url_prefix="/v1/embeddings")
        blueprint.add_url_rule("", view_func=self.create, methods=["POST"])
        return blueprint

    def create(self) -> Response:
        """Make a vector of each input; a caller who leaves before that cancels what is left."""
        read_query()
        fields = read_object()
        call = parse_embedding_call(fields)
        sized = size_embeddings(call, self._models.among(current_tenant().models))
        order = group_order_of(_SURFACE, sized, read_idempotency_key(_SURFACE.name, fields))
        return jsonify(embedding_list(self._answers.at_once(order), call.encoding_format))
