"""Every setting of promptmill, with its default and unit; read from PROMPTMILL_* variables by
composition roots only.

An empty variable is one that is not set. Every secret can also come from a file: of
PROMPTMILL_API_KEY_FILE, for example, the content is the key. This module imports nothing of ours;
the parts receive plain values and never see it. docs/settings.md is made of it.
"""

import json
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, FilePath, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

# Settings that let in whoever knows them: each has a `<name>_file` beside it.
SECRETS = ("redis_url", "api_key", "webhook_secret", "admin_key")


class Settings(BaseSettings):
    """All settings; `PROMPTMILL_REDIS_URL` sets `redis_url`, and so on."""

    model_config = SettingsConfigDict(
        env_prefix="PROMPTMILL_",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # it may be a secret
    )

    # Store
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        pattern="^rediss?://",
        repr=False,  # it may hold a password
        description="The one Redis or Valkey server.",
    )
    redis_url_file: FilePath | None = Field(
        default=None, description="File that holds the URL, as it may hold a password."
    )
    redis_allow_insecure: bool = Field(
        default=False,
        description="Use a Redis on another machine without password or TLS all the same.",
    )
    key_prefix: str = Field(
        default="{pm}:",
        min_length=1,
        description="Prefix of every key; the braces keep one hash slot.",
    )
    data_dir: Path = Field(
        default_factory=lambda: Path.home() / ".promptmill",
        description="Uploaded and produced files; one disk for all processes.",
    )

    # API
    api_host: str = Field(default="127.0.0.1", description="Address the API listens on.")
    api_port: int = Field(
        default=8100, ge=0, le=65535, description="Port of the API; 0 picks a free one."
    )
    api_threads: int = Field(default=64, ge=2, description="Request threads of one API process.")
    api_max_waiters: int = Field(
        default=48,
        ge=1,
        description="Requests that may wait for an answer at once; other threads stay free.",
    )
    api_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="The one API key; `up` and `demo` make one if unset.",
    )
    api_key_file: FilePath | None = Field(default=None, description="File that holds the API key.")
    trusted_proxies: int = Field(
        default=0,
        ge=0,
        le=16,
        description="Own proxies in front of the API, whose X-Forwarded-For tells the caller.",
    )
    request_limit_s: float = Field(
        default=30.0,
        gt=2.0,
        description="A request must be here after this long; an upload, with 128 kB/s on top.",
    )
    max_body_bytes: int = Field(
        default=1_048_576, ge=1024, description="Largest JSON request body."
    )
    max_file_bytes: int = Field(default=209_715_200, ge=1024, description="Largest uploaded file.")
    default_max_tokens: int = Field(
        default=256, ge=1, description="max_tokens of a job that names none."
    )
    answer_limit_s: float = Field(
        default=300.0,
        gt=0,
        description="How long a chat, completion or response may take whose caller waits for it.",
    )
    max_wait_s: float = Field(default=60.0, gt=0, description="Largest ?wait= in seconds.")

    # Queue
    max_queued_jobs: int = Field(
        default=100_000, ge=1, description="Jobs a model's queue holds before it answers 503."
    )
    max_queued_bytes: int = Field(
        default=1_073_741_824,
        ge=1024,
        description="Bytes its live jobs may hold, with room for their results, before it does.",
    )
    target_wait_s: float = Field(
        default=0.0,
        ge=0,
        description="Work is shed to keep the 95th percentile of waits near this; 0 is off.",
    )
    lease_s: float = Field(
        default=15.0, gt=0, description="A claim is lost after this long without renewal."
    )
    renew_s: float = Field(
        default=5.0, gt=0, description="Leases are renewed this often while the engine steps."
    )
    max_losses: int = Field(
        default=3, ge=1, description="A job that was lost with its worker this often is dead."
    )
    result_ttl_s: int = Field(
        default=86_400, ge=1, description="Lifetime of prompt and result text after the end."
    )
    record_ttl_s: int = Field(
        default=604_800, ge=1, description="Lifetime of a job's record after the end."
    )
    idempotency_ttl_s: int = Field(
        default=86_400, ge=1, description="How long an Idempotency-Key is remembered."
    )

    # Engine worker
    models: list[Path] = Field(
        default_factory=list, description="Model folders this installation serves (JSON list)."
    )
    slots: int = Field(default=32, ge=1, description="Sequences an engine runs at once.")
    step_tokens: int = Field(default=512, ge=16, description="Token budget of one engine step.")
    block_size: int = Field(default=32, ge=1, description="Tokens in one KV block.")
    kv_blocks: int | None = Field(
        default=None, ge=1, description="KV blocks to allocate; from the memory budget if unset."
    )
    memory_fraction: float = Field(
        default=0.25, gt=0, le=0.95, description="Share of free memory the engine may take."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="Type of weights and activations; auto takes the folder's."
    )
    kv_dtype: Literal["auto", "int8"] = Field(
        default="auto",
        description="Type of the KV cache; auto takes that of activations. int8 holds twice the"
        " tokens; block_size must then be a multiple of 16.",
    )
    device: Literal["cpu", "cuda"] = Field(
        default="cpu", description="What the engine computes on; of several GPUs, the first seen."
    )
    kernels: Literal["auto", "native", "triton", "reference"] = Field(
        default="auto",
        description="auto: the device's own where there are some (native on a CPU, triton on a"
        " GPU), else the plain ones of reference.",
    )
    cuda_graphs: bool = Field(
        default=True,
        description="On a GPU, record decode steps at start and replay them; the log says what it"
        " took.",
    )
    engine_threads: int | None = Field(
        default=None, ge=1, description="Threads of the tensor library; all cores if unset."
    )
    coalesce_ms: float = Field(
        default=10.0, ge=0, description="An idle engine waits this long for company."
    )
    watchdog_s: float = Field(
        default=60.0, gt=0, description="A step that takes longer ends the process."
    )
    task_events: bool = Field(
        default=True,
        description="Send Celery's events of each job: what Flower shows as it happens.",
    )
    grace_s: float = Field(
        default=30.0, ge=0, description="SIGTERM: how long running jobs may still finish."
    )

    # CPU worker
    cpu_slots: int = Field(
        default=64, ge=1, description="Webhook deliveries and batch ticks run at once."
    )
    batch_window: int = Field(
        default=256, ge=1, description="Lines of one batch kept in the queue at once."
    )
    max_batch_lines: int = Field(default=50_000, ge=1, description="Lines one batch file may hold.")
    webhook_secret: SecretStr | None = Field(
        default=None, min_length=1, description="whsec_... secret that signs job webhooks."
    )
    webhook_secret_file: FilePath | None = Field(
        default=None, description="File that holds the secret of job webhooks."
    )
    webhook_allow_http: bool = Field(default=False, description="Allow http:// receivers.")
    webhook_allow_networks: list[str] = Field(
        default_factory=list,
        description="CIDRs of private networks webhooks may reach (JSON list).",
    )
    webhook_allow_ports: list[int] = Field(
        default_factory=list,
        description="Ports webhooks may use beside the scheme's own (JSON list).",
    )
    webhook_timeout_s: float = Field(
        default=15.0, gt=0, description="Total time of one delivery attempt."
    )

    # Watching
    admin_key: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Key of the admin API; without one there is no admin API.",
    )
    admin_key_file: FilePath | None = Field(
        default=None, description="File that holds the admin key."
    )
    admin_host: str = Field(default="127.0.0.1", description="Address the admin API listens on.")
    admin_port: int = Field(
        default=8101, ge=1, le=65535, description="Port of the admin API, beside the API's own."
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="Port of a worker's /metrics; 0 turns it off."
    )
    flower_port: int = Field(default=5555, ge=0, le=65535, description="Port of Flower.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="The least urgent lines that are logged."
    )
    failpoint: str | None = Field(
        default=None, description="For tests only: name:nth, where and when the process shall die."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, given: dict[str, Any]) -> dict[str, Any]:  # values of all kinds
        """Fill secrets in from their files; one that was given itself goes before its file."""
        files = {name: given.get(f"{name}_file") for name in SECRETS}
        read: dict[str, Any] = {}
        for name, path in files.items():
            if path is not None and given.get(name) is not None:
                read[f"{name}_file"] = None
            # Of what is no file its own field tells.
            elif path is not None and Path(path).is_file():
                read[name] = _secret_in(Path(path), f"{name}_file")
        return given | read

    @model_validator(mode="after")
    def _check(self) -> "Settings":
        if self.renew_s * 2 > self.lease_s:
            raise ValueError(
                "renew_s must be at most half of lease_s, or one late renewal loses a lease"
            )
        if self.api_max_waiters >= self.api_threads:
            raise ValueError("api_max_waiters must leave api_threads free for submits")
        if not (self.redis_allow_insecure or _is_guarded(self.redis_url)):
            raise ValueError(
                "redis_url names another machine without password or rediss://: whoever reaches it"
                " reads every prompt; redis_allow_insecure takes it all the same"
            )
        return self

    def queue_limits(self) -> dict[str, int]:
        """The queue's bounds in the unit of its scripts, milliseconds."""
        return {
            "lease_ms": round(self.lease_s * 1000),
            "max_losses": self.max_losses,
            "max_queued_jobs": self.max_queued_jobs,
            "max_queued_bytes": self.max_queued_bytes,
            "target_wait_ms": round(self.target_wait_s * 1000),
            "result_ttl_ms": self.result_ttl_s * 1000,
            "record_ttl_ms": self.record_ttl_s * 1000,
            "idempotency_ttl_ms": self.idempotency_ttl_s * 1000,
        }

    def as_environment(self) -> dict[str, str]:
        """Return the variables that give a child process the settings that were set here.

        One that was set to None is an empty variable, so that the child does not take ours. What
        came from a file is read from there by the child too.
        """
        from_files = {name for name in SECRETS if getattr(self, f"{name}_file") is not None}
        return {
            f"PROMPTMILL_{name.upper()}": _as_text(getattr(self, name))
            for name in sorted(self.model_fields_set - from_files)
        }

    def resolved_api_key(self) -> str | None:
        """The API key from the variable or its file; None when neither is set."""
        return None if self.api_key is None else self.api_key.get_secret_value()

    def resolved_admin_key(self) -> str | None:
        """The admin key from the variable or its file; None when neither is set."""
        return None if self.admin_key is None else self.admin_key.get_secret_value()


def _secret_in(path: Path, name: str) -> str:
    """Return a file's one line; raises ValueError, which says nothing of the content."""
    try:
        secret = path.read_text().strip()
    except PermissionError:
        raise ValueError(f"{name}: the file can't be read by this user") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}: the file holds no text") from None
    if not secret:
        raise ValueError(f"{name}: the file is empty")
    return secret


def _as_text(value: Any) -> str:  # whatever type a setting has
    if value is None:
        return ""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, list):
        return json.dumps([item if isinstance(item, int) else str(item) for item in value])
    return str(value)


def _is_guarded(redis_url: str) -> bool:
    """Tell whether nobody but us can use the server: it asks for a password, or is on loopback."""
    parts = urlsplit(redis_url)
    if parts.scheme == "rediss" or parts.password:
        return True
    host = parts.hostname or "localhost"
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
