"""Chat completions: POST /v1/chat/completions, answered at once or as it comes."""

from typing import Any

from flask import Blueprint, Response, jsonify

from api.auth import current_tenant
from api.idempotency import read_idempotency_key
from api.openai.answers import Answers, completed_result
from api.openai.chunks import ChatChoices, Chunks, chunk_options
from api.openai.orders import Surface, order_of
from api.openai.streaming import stream
from api.requests import read_object, read_query
from queueing.job import JobRecord
from queueing.openai_chat import ChatCall, chat_completion, parse_chat_call, size_chat
from queueing.served_model import ServedModels

_SURFACE = Surface("chat", "chatcmpl-")


class ChatRoutes:
    """The handler of /v1/chat/completions. It holds nothing of a request."""

    def __init__(self, answers: Answers, models: ServedModels) -> None:
        self._answers = answers
        self._models = models

    def blueprint(self) -> Blueprint:
        """Return the route, to be registered once."""
        blueprint = Blueprint("chat", __name__, url_prefix="/v1/chat/completions")
        blueprint.add_url_rule("", view_func=self.create, methods=["POST"])
        return blueprint

    def create(self) -> Response:
        """Answer a chat; a caller who leaves before that cancels it."""
        read_query()
        fields = read_object()
        call = parse_chat_call(fields)
        sized = size_chat(call, self._models.among(current_tenant().models))
        idempotency = read_idempotency_key(_SURFACE.name, fields)
        order = order_of(_SURFACE, sized, idempotency, call.service_tier, call.metadata)
        if call.stream:
            following = self._answers.as_it_comes(order)
            options = chunk_options(call, call.stream_options)
            return stream(following, Chunks(following.record, ChatChoices(), options))
        return jsonify(_completion(self._answers.at_once(order), call))


def _completion(record: JobRecord, call: ChatCall) -> dict[str, Any]:
    result = completed_result(record)
    completion = chat_completion(record.id, result.model, result, int(record.arrival_s))
    return {**completion, "service_tier": call.service_tier or "default"}
