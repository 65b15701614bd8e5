"""Signatures of webhooks as Standard Webhooks 1.0.0 defines them: secrets, signing, verifying.

Signed are the bytes that are sent, as `<id>.<timestamp>.<body>`. Secrets always carry `whsec_` and
signatures `v1,`: without them the verifiers in use disagree about what is base64. Knows no HTTP and
no Redis.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from queueing.job import DEFAULT_TENANT

TOLERANCE_S = 300

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64


class SignatureError(Exception):
    """The message is not from who holds the secret, or too old or too new to be sure."""


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """A signing key; its text is for the receiver's owner alone and is not in its repr."""

    key: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> "WebhookSecret":
        """Make a new one."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def parse(cls, text: str) -> "WebhookSecret":
        """Read `whsec_` and base64; raises ValueError without quoting what it read."""
        if not text.startswith(_PREFIX):
            raise ValueError(f"a webhook secret begins with {_PREFIX}")
        try:
            key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError(f"a webhook secret is base64 after {_PREFIX}") from None
        if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
            raise ValueError(f"a webhook secret holds {_MIN_BYTES} to {_MAX_BYTES} bytes")
        return cls(key)

    @property
    def text(self) -> str:
        """The form that is shown once."""
        return _PREFIX + base64.b64encode(self.key).decode()

    def for_tenant(self, tenant: str) -> "WebhookSecret":
        """Return a tenant's own secret, made from this one, so that no tenant signs for another.

        The default tenant, which is alone where there are no others, has this one itself.
        """
        if tenant == DEFAULT_TENANT:
            return self
        return WebhookSecret(
            hmac.new(self.key, f"tenant {tenant}".encode(), hashlib.sha256).digest()
        )

    def signature(self, webhook_id: str, timestamp_s: int, body: bytes) -> str:
        """Return one versioned signature."""
        signed = f"{webhook_id}.{timestamp_s}.".encode() + body
        digest = hmac.new(self.key, signed, hashlib.sha256).digest()
        return f"v1,{base64.b64encode(digest).decode()}"


def signed_headers(
    signers: Sequence[WebhookSecret], webhook_id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """Return the three headers of an attempt; one signature per secret, while one is rotated."""
    assert "." not in webhook_id, "the id is joined by dots to what is signed with it"
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(
            secret.signature(webhook_id, timestamp_s, body) for secret in signers
        ),
    }


def verify(secret: WebhookSecret, headers: Mapping[str, str], body: bytes, now_s: float) -> str:
    """Return the webhook's id; raises SignatureError. `headers` have lower-case names."""
    try:
        webhook_id = headers["webhook-id"]
        timestamp_s = int(headers["webhook-timestamp"])
        signatures = headers["webhook-signature"].split(" ")
    except (KeyError, ValueError) as error:
        raise SignatureError("a signature header is missing or malformed") from error
    if abs(now_s - timestamp_s) > TOLERANCE_S:
        raise SignatureError("the timestamp is more than five minutes off")
    expected = secret.signature(webhook_id, timestamp_s, body).encode()
    if not any(hmac.compare_digest(expected, signature.encode()) for signature in signatures):
        raise SignatureError("no signature matches")
    return webhook_id
