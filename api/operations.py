"""Operations: what each route takes and answers, beside what its own code already says.

The document's paths, path parameters and words come from the routes; here stand body, query and
answers by endpoint name. A route that has no entry fails a test, and so does an entry without one.
"""

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from api.openai.batches import BatchBody
from api.openai.objects import (
    BatchObject,
    ChatCompletion,
    Deleted,
    EmbeddingList,
    FileObject,
    ListObject,
    ModelObject,
    ResponseObject,
    TextCompletion,
    WholeList,
)
from api.schemas import JobBody, JobObject, JobReceipt
from api.tenant import TenantObject
from api.webhook_schemas import (
    CreateBody,
    DeliveryObject,
    EndpointObject,
    EndpointWithSecret,
    RotateBody,
    TestBody,
    TestResult,
    UpdateBody,
)
from queueing.files import FilePurpose
from queueing.job import JobState
from queueing.openai_chat import ChatCall
from queueing.openai_completion import CompletionCall
from queueing.openai_embedding import EmbeddingCall
from queueing.openai_response import LOGPROBS, ResponseCall

JSON = "application/json"
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"
TEXT = "text/plain"
FORM = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Query:
    """One parameter of a query; `schema` is JSON Schema."""

    name: str
    schema: dict[str, Any]
    description: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a success looks like. `media` are the types it can have; `model` describes JSON."""

    model: type[BaseModel] | None = None
    status: int = 200
    media: tuple[str, ...] = (JSON,)


@dataclass(frozen=True, slots=True)
class Operation:
    """One route. `errors` are the refusals it can give beside those that all routes share."""

    tag: str
    answer: Answer
    body: type[BaseModel] | None = None
    form: dict[str, Any] | None = None
    is_body_required: bool = True
    query: tuple[Query, ...] = ()
    headers: tuple[Query, ...] = ()
    errors: tuple[int, ...] = field(default=())


class HealthObject(BaseModel):
    """How a process is."""

    status: str


class WebhookSecretObject(BaseModel):
    """What signs the webhooks that jobs name."""

    object: str
    signing_secret: str


def _limit(largest: int) -> Query:
    schema = {"type": "integer", "minimum": 1, "maximum": largest}
    return Query("limit", schema, "How many at most.")


def _one_of(name: str, values: list[str], description: str, *, required: bool = False) -> Query:
    return Query(name, {"type": "string", "enum": values}, description, required)


_AFTER = Query("after", {"type": "string"}, "The last id of the page before.")
_ORDER = _one_of("order", ["asc", "desc"], "By creation; desc, the newest first, is the default.")
_WAIT = Query("wait", {"type": "number", "minimum": 0}, "Seconds to wait for the end.")
_IDEMPOTENCY = Query(
    "Idempotency-Key",
    {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"},
    "Requests with the same key and body are one request.",
)
_UPLOAD = {
    "type": "object",
    "properties": {
        "purpose": {"type": "string", "enum": ["batch"]},
        "file": {"type": "string", "contentMediaType": BYTES},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
    },
    "required": ["purpose", "file"],
    "additionalProperties": False,
}
_GENERATES = (403, 404, 409, 500, 504)

OPERATIONS: dict[str, Operation] = {
    "jobs.submit": Operation(
        "Jobs",
        Answer(JobReceipt, 202),
        body=JobBody,
        headers=(_IDEMPOTENCY,),
        errors=(403, 404, 409),
    ),
    "tenant.list_jobs": Operation(
        "Jobs",
        Answer(ListObject[JobObject]),
        query=(
            _one_of("state", list(JobState), "Jobs in this state.", required=True),
            _AFTER,
            _limit(100),
        ),
        errors=(404,),
    ),
    "jobs.retrieve": Operation("Jobs", Answer(JobObject), query=(_WAIT,)),
    "jobs.erase": Operation("Jobs", Answer(status=204)),
    "jobs.cancel": Operation("Jobs", Answer(JobObject)),
    "tenant.retrieve": Operation("Tenant", Answer(TenantObject)),
    "models.list_models": Operation("Models", Answer(WholeList[ModelObject])),
    "models.retrieve": Operation("Models", Answer(ModelObject)),
    "chat.create": Operation(
        "OpenAI",
        Answer(ChatCompletion, media=(JSON, EVENTS)),
        body=ChatCall,
        headers=(_IDEMPOTENCY,),
        errors=_GENERATES,
    ),
    "completions.create": Operation(
        "OpenAI",
        Answer(TextCompletion, media=(JSON, EVENTS)),
        body=CompletionCall,
        headers=(_IDEMPOTENCY,),
        errors=_GENERATES,
    ),
    "embeddings.create": Operation(
        "OpenAI",
        Answer(EmbeddingList),
        body=EmbeddingCall,
        headers=(_IDEMPOTENCY,),
        errors=_GENERATES,
    ),
    "responses.create": Operation(
        "OpenAI",
        Answer(ResponseObject, media=(JSON, EVENTS)),
        body=ResponseCall,
        headers=(_IDEMPOTENCY,),
        errors=_GENERATES,
    ),
    "responses.retrieve": Operation(
        "OpenAI",
        Answer(ResponseObject, media=(JSON, EVENTS)),
        query=(
            _one_of("stream", ["true", "false"], "Follow it as it comes."),
            Query("starting_after", {"type": "integer", "minimum": 0}, "Events seen already."),
            _one_of("include[]", [LOGPROBS], "Of a response made with them; told in any case."),
            _one_of("include_obfuscation", ["false"], "Padding of events, which is not served."),
        ),
    ),
    "responses.cancel": Operation("OpenAI", Answer(ResponseObject)),
    "responses.delete": Operation("OpenAI", Answer(Deleted)),
    "files.upload": Operation(
        "Files and batches",
        Answer(FileObject),
        form=_UPLOAD,
        headers=(_IDEMPOTENCY,),
        errors=(409, 507),
    ),
    "files.list": Operation(
        "Files and batches",
        Answer(ListObject[FileObject]),
        query=(
            _AFTER,
            _limit(10_000),
            _ORDER,
            _one_of("purpose", list(FilePurpose), "Files of this purpose."),
        ),
        errors=(404,),
    ),
    "files.retrieve": Operation("Files and batches", Answer(FileObject)),
    "files.delete": Operation("Files and batches", Answer(Deleted), errors=(409,)),
    "files.content": Operation("Files and batches", Answer(media=(BYTES,))),
    "batches.create": Operation(
        "Files and batches",
        Answer(BatchObject),
        body=BatchBody,
        headers=(_IDEMPOTENCY,),
        errors=(403, 404, 409),
    ),
    "batches.list": Operation(
        "Files and batches",
        Answer(ListObject[BatchObject]),
        query=(_AFTER, _limit(100)),
        errors=(404,),
    ),
    "batches.retrieve": Operation("Files and batches", Answer(BatchObject)),
    "batches.cancel": Operation("Files and batches", Answer(BatchObject), errors=(409,)),
    "webhooks.create": Operation("Webhooks", Answer(EndpointWithSecret), body=CreateBody),
    "webhooks.list_endpoints": Operation(
        "Webhooks",
        Answer(ListObject[EndpointObject]),
        query=(_AFTER, _limit(100)),
        errors=(404,),
    ),
    "webhooks.list_event_types": Operation("Webhooks", Answer(WholeList[str])),
    "webhooks.retrieve": Operation("Webhooks", Answer(EndpointObject)),
    "webhooks.update": Operation("Webhooks", Answer(EndpointObject), body=UpdateBody),
    "webhooks.delete": Operation("Webhooks", Answer(Deleted)),
    "webhooks.rotate_secret": Operation(
        "Webhooks", Answer(EndpointWithSecret), body=RotateBody, is_body_required=False
    ),
    "webhooks.test": Operation("Webhooks", Answer(TestResult), body=TestBody),
    "webhooks.list_deliveries": Operation(
        "Webhooks",
        Answer(ListObject[DeliveryObject]),
        query=(
            _AFTER,
            _limit(100),
            _one_of("status", ["pending", "delivered", "failed"], "Deliveries in this status."),
        ),
    ),
    "webhooks.retrieve_delivery": Operation("Webhooks", Answer(DeliveryObject)),
    "webhooks.replay": Operation("Webhooks", Answer(DeliveryObject), errors=(409,)),
    "webhooks.replay_failed": Operation("Webhooks", Answer(WholeList[str])),
    "webhook_secret._retrieve": Operation("Webhooks", Answer(WebhookSecretObject), errors=(404,)),
    "health.livez": Operation("Health", Answer(HealthObject)),
    "health.readyz": Operation("Health", Answer(HealthObject), errors=(503,)),
    "health.metrics": Operation("Health", Answer(media=(TEXT,))),
    "docs.document": Operation("Documentation", Answer(media=(JSON,))),
    "docs.page": Operation("Documentation", Answer(media=("text/html",))),
}
