"""The operator's API: queues, tenants and their keys, dead jobs, switches and draining.

Owns the application behind the admin key, on a port of its own; the tenants' API has none of its
routes. A tenant's key is known here and refused: 403. Every change leaves a line in the log.
"""

import hmac

import structlog
from flask import Blueprint, Flask, Response, jsonify, request
from werkzeug.routing import BaseConverter

from api.admin_schemas import (
    KeyBody,
    ModelRouteBody,
    SwitchBody,
    TenantBody,
    dead_object,
    disabled_object,
    key_object,
    queue_object,
    tenant_object,
)
from api.auth import Keyring
from api.openai.lists import list_object, read_page_query
from api.requests import read_object, read_query
from ops.logs import Event
from queueing.admission import RateLimits
from queueing.api_key import digest_of
from queueing.body import validate
from queueing.dead_jobs import DeadJobs
from queueing.endpoints import EndpointStore
from queueing.errors import FailureCode, RequestError
from queueing.model_routes import ModelRoutes
from queueing.queue import JobQueue
from queueing.switches import Switch, SwitchBoard
from queueing.tenants import Tenant, TenantStore

_PAGE = 20
_MAX_PAGE = 100
_SCHEME = "bearer "

log = structlog.stdlib.get_logger(__name__)


class SwitchName(BaseConverter):
    """A path part that is the name of a switch; everything else is a 404."""

    regex = "|".join(Switch)


class TenantName(BaseConverter):
    """A path part that can be a tenant's name; everything else is a 404."""

    regex = "[a-z0-9][a-z0-9-]{0,62}"


class JobId(BaseConverter):
    """A path part that can be the id of a job of any surface; everything else is a 404."""

    regex = "[a-z]+[-_][0-9A-Za-z]{22}"


class AdminRoutes:
    """The handlers under /admin. They hold nothing of a request."""

    def __init__(
        self,
        queue: JobQueue,
        tenants: TenantStore,
        dead: DeadJobs,
        switches: SwitchBoard,
        model_routes: ModelRoutes,
        endpoints: EndpointStore,
    ) -> None:
        self._queue = queue
        self._tenants = tenants
        self._dead = dead
        self._switches = switches
        self._model_routes = model_routes
        self._endpoints = endpoints

    def blueprint(self) -> Blueprint:
        """Return the routes, to be registered once."""
        blueprint = Blueprint("admin", __name__, url_prefix="/admin")
        tenant = "/tenants/<tenant_name:name>"
        dead_job = "/dead_jobs/<job_id:job_id>"
        for rule, view, method in (
            ("/queues", self.list_queues, "GET"),
            ("/tenants", self.list_tenants, "GET"),
            (tenant, self.put_tenant, "PUT"),
            (f"{tenant}/keys", self.list_keys, "GET"),
            (f"{tenant}/keys", self.create_key, "POST"),
            ('/keys/<id("key_"):key_id>/revoke', self.revoke_key, "POST"),
            ("/dead_jobs", self.list_dead, "GET"),
            (f"{dead_job}/retry", self.retry, "POST"),
            (dead_job, self.drop, "DELETE"),
            ("/disabled_endpoints", self.list_disabled, "GET"),
            ("/switches", self.list_switches, "GET"),
            ("/switches/<switch_name:name>", self.flip, "PUT"),
            ("/model_routes", self.list_model_routes, "GET"),
            ("/model_routes/<path:model>", self.put_model_route, "PUT"),
            ("/drain", self.drain_state, "GET"),
            ("/drain", self.drain, "POST"),
            ("/drain", self.resume, "DELETE"),
        ):
            blueprint.add_url_rule(rule, view_func=view, methods=[method])
        return blueprint

    def list_queues(self) -> Response:
        """Return every queue: what waits by priority, what is leased, what became of the rest."""
        read_query()
        return jsonify(
            object="list",
            data=[
                queue_object(name, self._queue.depth(name), self._queue.totals(name))
                for name in self._queue.queues()
            ],
        )

    def list_tenants(self) -> Response:
        """Return every tenant that was made."""
        read_query()
        found = self._tenants.all_tenants()
        return jsonify(object="list", data=[tenant_object(tenant) for tenant in found])

    def put_tenant(self, name: str) -> Response:
        """Make a tenant, or say anew what it may do."""
        read_query()
        body = validate(TenantBody, read_object())
        limits = RateLimits(body.requests_per_min, body.tokens_per_min, body.tokens_per_day)
        models = None if body.models is None else frozenset(body.models)
        tenant = Tenant(name, body.tier, frozenset(body.priorities), models, limits)
        self._tenants.put(tenant)
        _note("tenant put", tenant=name)
        return jsonify(tenant_object(tenant))

    def list_keys(self, name: str) -> Response:
        """Return a tenant's keys without their texts."""
        read_query()
        found = self._tenants.keys_of(name)
        return jsonify(object="list", data=[key_object(key) for key in found])

    def create_key(self, name: str) -> Response:
        """Make a key; the answer alone holds its text."""
        read_query()
        body = validate(KeyBody, read_object())
        api_key, text = self._tenants.create_key(name, body.name)
        _note("key created", tenant=name, key_id=api_key.id)
        return jsonify(key_object(api_key) | {"api_key": text})

    def revoke_key(self, key_id: str) -> Response:
        """End a key for good."""
        read_query()
        if not self._tenants.revoke_key(key_id):
            raise RequestError(FailureCode.NOT_FOUND, "there is no such key")
        _note("key revoked", key_id=key_id)
        return Response(status=204)

    def list_dead(self) -> Response:
        """Return a page of dead jobs of all tenants, newest first."""
        query, _ = read_page_query(default_limit=_PAGE, max_limit=_MAX_PAGE)
        page = self._dead.page(query)
        return jsonify(list_object([dead_object(job) for job in page.items], page.has_more))

    def retry(self, job_id: str) -> Response:
        """Queue a copy of a dead job; a repeat returns the same copy."""
        read_query()
        copy = self._dead.retry(job_id)
        if copy is None:
            raise _no_dead_job()
        _note("dead job retried", job_id=job_id, copy_id=copy.job_id)
        return jsonify(id=copy.job_id, object="job", retry_of=job_id)

    def drop(self, job_id: str) -> Response:
        """Erase a dead job."""
        read_query()
        if not self._dead.drop(job_id):
            raise _no_dead_job()
        _note("dead job dropped", job_id=job_id)
        return Response(status=204)

    def list_disabled(self) -> Response:
        """Return a page of webhook endpoints that deliveries disabled, of all tenants."""
        query, _ = read_page_query(default_limit=_PAGE, max_limit=_MAX_PAGE)
        page = self._endpoints.disabled_page(query)
        return jsonify(list_object([disabled_object(one) for one in page.items], page.has_more))

    def list_switches(self) -> Response:
        """Return every switch with its value; null is off."""
        read_query()
        known = self._switches.read()
        data = [{"name": one.value, "value": known.get(one)} for one in Switch]
        return jsonify(object="list", data=data)

    def flip(self, name: str) -> Response:
        """Set a switch or turn it off; all processes see it within two seconds."""
        read_query()
        body = validate(SwitchBody, read_object())
        flip = self._switches.flip(Switch(name), body.value)
        _note("switch flipped", switch=name, before=flip.before, now=flip.now)
        return jsonify(name=name, value=flip.now)

    def list_model_routes(self) -> Response:
        """Return the models in whose place another one is used."""
        read_query()
        routes = sorted(self._model_routes.read().items())
        data = [{"model": model, "used": used} for model, used in routes]
        return jsonify(object="list", data=data)

    def put_model_route(self, model: str) -> Response:
        """Use another model in this one's place; all processes see it within two seconds."""
        read_query()
        body = validate(ModelRouteBody, read_object())
        if body.used == model:
            message = "a model can't stand in for itself; null ends a route"
            raise RequestError(FailureCode.INVALID_REQUEST, message, "used")
        change = self._model_routes.put(model, body.used)
        _note("model route put", model=model, before=change.before, now=change.now)
        return jsonify(model=model, used=change.now)

    def drain_state(self) -> Response:
        """Say whether the installation drains, and what its workers still hold, by queue."""
        read_query()
        held = {name: self._queue.depth(name).leased for name in self._queue.queues()}
        return jsonify(
            object="drain",
            draining=Switch.DRAIN in self._switches.read(),
            leased={name: count for name, count in held.items() if count > 0},
        )

    def drain(self) -> Response:
        """Let all processes take nothing new and finish what runs; seen within two seconds."""
        return self._set_drain(1, "drain begun")

    def resume(self) -> Response:
        """Let all processes go on."""
        return self._set_drain(None, "drain ended")

    def _set_drain(self, value: int | None, action: str) -> Response:
        read_query()
        self._switches.flip(Switch.DRAIN, value)
        _note(action)
        return self.drain_state()


def set_up_admin(app: Flask, routes: AdminRoutes, admin_key: str, keyring: Keyring) -> None:
    """Make an application the admin's."""
    app.url_map.converters |= {
        "tenant_name": TenantName,
        "job_id": JobId,
        "switch_name": SwitchName,
    }
    guard_admin(app, admin_key, keyring)
    app.register_blueprint(routes.blueprint())


def guard_admin(app: Flask, admin_key: str, keyring: Keyring) -> None:
    """Ask for the admin key before every request; a tenant's is refused by name."""
    admin_digest = digest_of(admin_key)

    @app.before_request
    def _authenticate() -> None:
        authorization = request.headers.get("Authorization")
        sent = (authorization or "")[len(_SCHEME) :]
        is_bearer = (authorization or "").lower().startswith(_SCHEME)
        if is_bearer and hmac.compare_digest(digest_of(sent), admin_digest):
            return
        # Counts what is no key at all, and refuses it.
        keyring.tenant_of(authorization, request.remote_addr or "")
        message = "this needs the admin key"
        raise RequestError(FailureCode.PERMISSION_DENIED, message)


def _note(what: str, **fields: str | int | None) -> None:
    log.info(Event.ADMIN_ACTED, action=what, **fields)


def _no_dead_job() -> RequestError:
    return RequestError(FailureCode.NOT_FOUND, "there is no such dead job")
