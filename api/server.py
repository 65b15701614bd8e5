"""The API's server process: gunicorn with one worker process of many threads, and how it ends.

SIGTERM: /readyz says draining, submits are refused, waiters get their answers, and for a moment the
port stays open so that a load balancer sees it; then gunicorn stops accepting and lets requests in
flight finish.

Must not be imported where there is no POSIX: gunicorn forks.
"""

from collections.abc import Callable
from functools import partial
from threading import Timer
from types import FrameType
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]

from api.app import Api, create_api
from api.gathered_connection import GatherLimits
from api.gathering import GatheringWorker
from ops.logs import configure_logging, logging_config
from ops.settings import Settings

_SERVICE = "api"
_NOTICE_S = 1.0
_KEEPALIVE_S = 30
# A key far too long is answered like any wrong key, so it must fit into a header.
_HEADER_BYTES = 16_384


def serve(settings: Settings) -> None:
    """Serve until told to end; returns by SystemExit, as gunicorn does."""
    Server(settings).run()


class Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn, configured by settings alone: no file, environment or command line of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # One above the largest body, so that what is too large is told from what is whole.
        self.gather_limits = GatherLimits(
            max_request_s=settings.request_limit_s, max_request_bytes=settings.max_body_bytes + 1
        )
        super().__init__()

    def load_config(self) -> None:
        """Set what differs from gunicorn's defaults."""
        settings = self._settings
        bind = [f"{settings.api_host}:{settings.api_port}"]
        if settings.resolved_admin_key() is not None:
            bind.append(f"{settings.admin_host}:{settings.admin_port}")
        for name, value in {
            "bind": bind,
            "workers": 1,
            "worker_class": DrainingWorker,
            "threads": settings.api_threads,
            "graceful_timeout": round(settings.grace_s + _NOTICE_S),
            "keepalive": _KEEPALIVE_S,
            "limit_request_field_size": _HEADER_BYTES,
            "control_socket_disable": True,
            "logconfig_dict": logging_config(_SERVICE, settings.log_level),
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Callable[..., Any]:  # a WSGI application
        """Compose the API; called in the worker process, where its threads will live."""
        configure_logging(_SERVICE, self._settings.log_level)
        api = create_api(self._settings)
        return DrainableApp(api, self._settings.admin_port)


class DrainableApp:
    """The WSGI application of both ports, with a handle for the worker that has to end it."""

    def __init__(self, api: Api, admin_port: int) -> None:
        self._app: Flask = api.app
        self._admin: Flask | None = api.admin
        self._admin_port = admin_port
        self.begin_draining = api.begin_draining

    def __call__(self, environ: dict[str, Any], *args: Any) -> Any:  # WSGI's own signature
        # The socket knows by which port a request came; its headers say what their sender likes.
        if self._admin and environ["gunicorn.socket"].getsockname()[1] == self._admin_port:
            return self._admin(environ, *args)
        return self._app(environ, *args)


class DrainingWorker(GatheringWorker):
    """gunicorn's threaded worker, which announces its end before it stops accepting."""

    def handle_exit(self, signal_number: int, frame: FrameType | None) -> None:
        """Take SIGTERM: drain now, stop accepting after the notice."""
        # A signal handler may have interrupted the holder of any lock, so it only leaves word for
        # the main loop.
        self.method_queue.defer(self._drain, signal_number, frame)

    def _drain(self, signal_number: int, frame: FrameType | None) -> None:
        self.wsgi.begin_draining()
        # Answers end their connections from now on, so that nobody sends into one as it is closed.
        self.max_keepalived = 0
        stop = partial(self.method_queue.defer, super().handle_exit, signal_number, frame)
        notice = Timer(_NOTICE_S, stop)
        notice.daemon = True
        notice.start()
