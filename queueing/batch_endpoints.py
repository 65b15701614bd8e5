"""The endpoints that the lines of a batch may ask: one table, a row for each.

A row says how a line's body becomes a job and how a job that completed becomes the answer's body.
Both are those of the endpoint's own route, so a line gets the text that a request would. Knows no
HTTP, no Redis and no file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queueing.job import JobRecord, JobResult
from queueing.openai_chat import chat_completion, parse_chat_line, size_chat
from queueing.openai_completion import parse_completion_line, size_completion, text_completion
from queueing.openai_embedding import embedding_line, parse_embedding_call, size_embedding_line
from queueing.openai_response import parse_response_line, response_object, size_response
from queueing.served_model import ServedModels, SizedEmbedding, SizedRequest
from queueing.wire import decode_embed_request, decode_request

Json = dict[str, Any]  # a body; its endpoint knows what is in it


@dataclass(frozen=True, slots=True)
class LineCall:
    """What a line asks for, and what travels with its job for the answer."""

    sized: SizedRequest | SizedEmbedding
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CompletedLine:
    """A line's job that completed. `read_payload` fetches what its worker read; few answers need
    it.
    """

    record: JobRecord
    result: JobResult
    read_payload: Callable[[], str]


@dataclass(frozen=True, slots=True)
class BatchEndpoint:
    """One row: `read` raises RequestError for what the route would refuse too."""

    url: str
    read: Callable[[Json, ServedModels], LineCall]
    answer: Callable[[CompletedLine], Json]


def _read_chat(body: Json, models: ServedModels) -> LineCall:
    chat = parse_chat_line(body)
    return LineCall(size_chat(chat, models), chat.metadata)


def _answer_chat(line: CompletedLine) -> Json:
    result = line.result
    return chat_completion(line.record.id, result.model, result, int(line.record.arrival_s))


def _read_completion(body: Json, models: ServedModels) -> LineCall:
    return LineCall(size_completion(parse_completion_line(body), models))


def _answer_completion(line: CompletedLine) -> Json:
    return text_completion(line.record.id, line.result, int(line.record.arrival_s))


def _read_response(body: Json, models: ServedModels) -> LineCall:
    call = parse_response_line(body)
    return LineCall(size_response(call, models), call.metadata)


def _answer_response(line: CompletedLine) -> Json:
    return response_object(line.record, decode_request(line.read_payload()))


def _read_embedding(body: Json, models: ServedModels) -> LineCall:
    return LineCall(size_embedding_line(parse_embedding_call(body), models))


def _answer_embedding(line: CompletedLine) -> Json:
    return embedding_line(line.result, decode_embed_request(line.read_payload()))


BATCH_ENDPOINTS = {
    endpoint.url: endpoint
    for endpoint in (
        BatchEndpoint("/v1/chat/completions", _read_chat, _answer_chat),
        BatchEndpoint("/v1/completions", _read_completion, _answer_completion),
        BatchEndpoint("/v1/responses", _read_response, _answer_response),
        BatchEndpoint("/v1/embeddings", _read_embedding, _answer_embedding),
    )
}
