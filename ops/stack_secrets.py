"""The secrets of a stack that nobody gave any: made once, kept in its folder for this user alone.

So a client's key and a receiver's signing secret are good after the stack was started again.
"""

import json
import secrets
from base64 import b64encode
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.private_file import write_private

_NAME = "secrets.json"


@dataclass(frozen=True, slots=True)
class StackSecrets:
    """The API key, and the secret that signs the webhooks of jobs."""

    api_key: str
    webhook_secret: str

    @staticmethod
    def kept_in(folder: Path) -> "StackSecrets":
        """Return the folder's secrets, made at the first call; it must exist."""
        path = folder / _NAME
        try:
            return StackSecrets(**json.loads(path.read_text()))
        except FileNotFoundError:
            made = StackSecrets(
                f"pm-{secrets.token_urlsafe(24)}",
                f"whsec_{b64encode(secrets.token_bytes(32)).decode()}",
            )
            write_private(path, json.dumps(asdict(made)))
            return made
