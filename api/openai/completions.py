"""Plain completions: POST /v1/completions, answered at once or as it comes."""

from flask import Blueprint, Response, jsonify

from api.auth import current_tenant
from api.idempotency import read_idempotency_key
from api.openai.answers import Answers, completed_result
from api.openai.chunks import Chunks, CompletionChoices, chunk_options
from api.openai.orders import Surface, order_of
from api.openai.streaming import stream
from api.requests import read_object, read_query
from queueing.openai_completion import parse_completion_call, size_completion, text_completion
from queueing.served_model import ServedModels

_SURFACE = Surface("completions", "cmpl-")


class CompletionRoutes:
    """The handler of /v1/completions. It holds nothing of a request."""

    def __init__(self, answers: Answers, models: ServedModels) -> None:
        self._answers = answers
        self._models = models

    def blueprint(self) -> Blueprint:
        """Return the route, to be registered once."""
        blueprint = Blueprint("completions", __name__, url_prefix="/v1/completions")
        blueprint.add_url_rule("", view_func=self.create, methods=["POST"])
        return blueprint

    def create(self) -> Response:
        """Complete a prompt; a caller who leaves before that cancels it."""
        read_query()
        fields = read_object()
        call = parse_completion_call(fields)
        sized = size_completion(call, self._models.among(current_tenant().models))
        idempotency = read_idempotency_key(_SURFACE.name, fields)
        order = order_of(_SURFACE, sized, idempotency)
        if call.stream:
            following = self._answers.as_it_comes(order)
            options = chunk_options(call, call.stream_options)
            return stream(following, Chunks(following.record, CompletionChoices(), options))
        record = self._answers.at_once(order)
        return jsonify(text_completion(record.id, completed_result(record), int(record.arrival_s)))
