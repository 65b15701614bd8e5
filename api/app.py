"""The API's composition root: settings in, a Flask application out.

The only file of the API that reads settings and constructs its parts. Nothing is connected and no
thread begins before the first request needs it.
"""

from dataclasses import dataclass
from typing import Any

import redis
import structlog
from flask import Flask

from api.admin import AdminRoutes, set_up_admin
from api.audit import audit_ids
from api.auth import Keyring, guard
from api.docs import OPEN_ENDPOINTS as DOCS_ENDPOINTS
from api.docs import docs_blueprint
from api.drain import Drain, log_flip
from api.errors import register_error_handlers
from api.health import OPEN_ENDPOINTS as HEALTH_ENDPOINTS
from api.health import StoreProbe, health_blueprint
from api.jobs import JobRoutes
from api.limits import TenantRates, tell_allowances
from api.models import load_model_card, models_blueprint
from api.openai.answers import Answers
from api.openai.batches import BatchRoutes
from api.openai.chat import ChatRoutes
from api.openai.completions import CompletionRoutes
from api.openai.embeddings import EmbeddingRoutes
from api.openai.files import FileRoutes
from api.openai.group_answers import GroupAnswers
from api.openai.responses import ResponseRoutes
from api.openapi import openapi_document
from api.operations import OPERATIONS
from api.proxies import TrustedProxies
from api.queue_metrics import QueueScrape, QueueTotals
from api.requests import ObjectId, observe_requests
from api.submission import JobWebhooks, Submission
from api.switch_metrics import SwitchStates
from api.tenant import tenant_blueprint
from api.waiters import Waiters
from api.webhook_metrics import WebhookBacklog
from api.webhooks import WebhookRoutes, webhook_secret_blueprint
from ops.logs import Event
from ops.metrics import HttpMetrics, JobMetrics, QueueMetrics, StoreMetrics, new_registry
from ops.settings import Settings
from queueing import keys
from queueing.admission import Admission
from queueing.batch_input import InputRules
from queueing.batch_store import BatchStore
from queueing.dead_jobs import DeadJobs
from queueing.deliveries import DeliveryLog
from queueing.endpoints import EndpointStore
from queueing.failpoints import Failpoints
from queueing.files import FileStore
from queueing.job_list import JobList
from queueing.model_routes import ModelRoutes, RouteChange, RouteWatch
from queueing.owners import Owners
from queueing.queue import JobQueue, QueueLimits
from queueing.served_model import ServedModels
from queueing.store import connect
from queueing.switches import SwitchBoard, SwitchWatch
from queueing.tenants import TenantStore
from queueing.token_stream import TokenStreams
from queueing.webhook_signature import WebhookSecret
from queueing.webhook_url import UrlPolicy

_OPEN_ENDPOINTS = HEALTH_ENDPOINTS | DOCS_ENDPOINTS
# A call that fails is repeated once; both together stay under the second within which a client is
# told that the store is away.
_STORE_TIMEOUT_S = 0.45
# How long a test of a webhook endpoint may wait for a worker beside the attempt itself.
_TEST_MARGIN_S = 5.0


class ApiKeyMissingError(ValueError):
    """No API key is set: the API does not serve the world by mistake."""

    def __init__(self) -> None:
        super().__init__("set PROMPTMILL_API_KEY or PROMPTMILL_API_KEY_FILE")


@dataclass(frozen=True, slots=True)
class Api:
    """An application and what ends with its process."""

    app: Flask
    admin: Flask | None
    drain: Drain
    waiters: Waiters
    client: "redis.Redis"

    def begin_draining(self) -> None:
        """Refuse new work and let whoever waits have his answer now."""
        self.drain.begin()
        self.waiters.close()

    def close(self) -> None:
        """Drain, and give back threads and connections."""
        self.begin_draining()
        self.waiters.join()
        self.client.close()


def create_app(settings: Settings) -> Flask:
    """Return the application alone, for a server that ends with its process."""
    return create_api(settings).app


def create_api(settings: Settings) -> Api:
    """Compose an API; raises ApiKeyMissingError and ModelFolderError."""
    api_key = settings.resolved_api_key()
    if not api_key:
        raise ApiKeyMissingError
    registry = new_registry()
    http, jobs, store = HttpMetrics(registry), JobMetrics(registry), StoreMetrics(registry)
    client = connect(
        settings.redis_url, connect_timeout_s=_STORE_TIMEOUT_S, timeout_s=_STORE_TIMEOUT_S
    )
    queue = JobQueue(
        client,
        QueueLimits(**settings.queue_limits()),
        prefix=settings.key_prefix,
        failpoints=Failpoints(settings.failpoint),
    )
    cards = [load_model_card(folder, settings.default_max_tokens) for folder in settings.models]
    substitutes = ModelRoutes(client, prefix=settings.key_prefix)
    watch = RouteWatch(substitutes, _log_route)
    models = ServedModels((card.served for card in cards), watch.used_for)
    switches = SwitchBoard(client, prefix=settings.key_prefix)
    drain = Drain(SwitchWatch(switches, log_flip))
    channels = [key.of(settings.key_prefix) for key in (keys.ENDED, keys.STREAMED)]
    waiters = Waiters(client, channels, settings.api_max_waiters)
    tenants = TenantStore(client, prefix=settings.key_prefix)
    rates = TenantRates(Admission(client, prefix=settings.key_prefix))
    webhook_secret = _webhook_secret(settings)
    webhooks = JobWebhooks(_url_policy(settings), has_secret=webhook_secret is not None)
    submission = Submission(queue, rates, webhooks, drain, http, jobs)
    scrape = QueueScrape(queue, models.names, QueueMetrics(registry), store)
    QueueTotals(queue, models.names, registry)
    SwitchStates(switches, substitutes, registry)
    endpoints = EndpointStore(
        client, QueueLimits(**settings.queue_limits()), prefix=settings.key_prefix
    )
    WebhookBacklog(queue, endpoints, registry)

    keyring = Keyring(api_key, tenants, http)
    app = _tenants_app(settings, client, keyring, http, store)
    probe = StoreProbe(client, settings.key_prefix)
    app.register_blueprint(health_blueprint(probe, drain, registry, [scrape.refresh]))
    app.register_blueprint(models_blueprint(cards))
    routes = JobRoutes(queue, submission, models, waiters, settings.max_wait_s)
    app.register_blueprint(routes.blueprint())
    app.register_blueprint(tenant_blueprint(JobList(client, queue, prefix=settings.key_prefix)))
    streams = TokenStreams(client, prefix=settings.key_prefix)
    answers = Answers(queue, streams, submission, waiters, settings.answer_limit_s)
    app.register_blueprint(ChatRoutes(answers, models).blueprint())
    app.register_blueprint(CompletionRoutes(answers, models).blueprint())
    together = GroupAnswers(queue, submission, waiters, settings.answer_limit_s)
    app.register_blueprint(EmbeddingRoutes(together, models).blueprint())
    app.register_blueprint(ResponseRoutes(answers, queue, models).blueprint())
    app.register_blueprint(_file_routes(settings, client, drain).blueprint())
    app.register_blueprint(_batch_routes(settings, client, drain, rates).blueprint())
    app.register_blueprint(_webhook_routes(settings, client, endpoints, waiters).blueprint())
    app.register_blueprint(webhook_secret_blueprint(webhook_secret))
    app.register_blueprint(docs_blueprint(lambda: api_document(app)))
    dead = DeadJobs(client, queue, prefix=settings.key_prefix)
    admin_routes = AdminRoutes(queue, tenants, dead, switches, substitutes, endpoints)
    admin = _admin_app(settings, admin_routes, keyring, http, store)
    return Api(app, admin, drain, waiters, client)


def _tenants_app(
    settings: Settings,
    client: "redis.Redis",
    keyring: Keyring,
    http: HttpMetrics,
    store: StoreMetrics,
) -> Flask:
    app = _behind_proxies(_new_flask(settings), settings.trusted_proxies)
    observe_requests(app, http)
    tell_allowances(app)
    audit_ids(app, Owners(client, prefix=settings.key_prefix))
    guard(app, keyring, _OPEN_ENDPOINTS)
    register_error_handlers(app, store)
    return app


def _admin_app(
    settings: Settings,
    routes: AdminRoutes,
    keyring: Keyring,
    http: HttpMetrics,
    store: StoreMetrics,
) -> Flask | None:
    admin_key = settings.resolved_admin_key()
    if admin_key is None:
        return None
    app = _new_flask(settings)
    observe_requests(app, http)
    set_up_admin(app, routes, admin_key, keyring)
    register_error_handlers(app, store)
    return app


def _log_route(change: RouteChange) -> None:
    structlog.stdlib.get_logger(__name__).info(
        Event.SWITCH_FLIPPED,
        switch=f"use_model {change.model}",
        before=change.before,
        now=change.now,
    )


def _webhook_secret(settings: Settings) -> WebhookSecret | None:
    secret = settings.webhook_secret
    return WebhookSecret.parse(secret.get_secret_value()) if secret else None


def api_document(app: Flask) -> dict[str, Any]:  # OpenAPI has no type of its own
    """Return the OpenAPI document of an API."""
    return openapi_document(app, OPERATIONS, _OPEN_ENDPOINTS)


def _webhook_routes(
    settings: Settings, client: "redis.Redis", endpoints: EndpointStore, waiters: Waiters
) -> WebhookRoutes:
    limits = QueueLimits(**settings.queue_limits())
    return WebhookRoutes(
        endpoints,
        DeliveryLog(client, limits, prefix=settings.key_prefix),
        _url_policy(settings),
        waiters,
        settings.webhook_timeout_s + _TEST_MARGIN_S,
    )


def _file_routes(settings: Settings, client: "redis.Redis", drain: Drain) -> FileRoutes:
    limits = QueueLimits(**settings.queue_limits())
    files = FileStore(client, settings.data_dir, limits, prefix=settings.key_prefix)
    rules = InputRules(max_line_bytes=settings.max_body_bytes)
    return FileRoutes(files, rules, drain, max_file_bytes=settings.max_file_bytes)


def _batch_routes(
    settings: Settings, client: "redis.Redis", drain: Drain, rates: TenantRates
) -> BatchRoutes:
    limits = QueueLimits(**settings.queue_limits())
    batches = BatchStore(client, limits, prefix=settings.key_prefix)
    return BatchRoutes(batches, drain, rates, window=settings.batch_window)


def _new_flask(settings: Settings) -> Flask:
    app = Flask("promptmill", static_folder=None)
    # One above the limit: see read_object.
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes + 1
    # Every spelling of an address but the right one is a 404: no redirects, which lose bodies.
    app.url_map.merge_slashes = False
    app.url_map.converters["id"] = ObjectId
    app.json.ensure_ascii = True  # type: ignore[attr-defined]  # the default provider has it
    app.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it
    return app


def _behind_proxies(app: Flask, num_proxies: int) -> Flask:
    if num_proxies > 0:
        app.wsgi_app = TrustedProxies(app.wsgi_app, num_proxies)  # type: ignore[method-assign]  # as Flask has it
    return app


def _url_policy(settings: Settings) -> UrlPolicy:
    return UrlPolicy.of(
        allow_http=settings.webhook_allow_http,
        allow_networks=settings.webhook_allow_networks,
        allowed_ports=settings.webhook_allow_ports,
    )
