"""Connection: how the commands of this machine find a running stack, as a small file of its own."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.private_file import write_private


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a stack answers and with which key; written for the commands that talk to it.

    `store_url` is the stack's own store, None where it uses one that was there.
    """

    url: str
    api_key: str
    flower_url: str | None = None
    store_url: str | None = None

    def write(self, path: Path) -> None:
        """Write for this user alone."""
        write_private(path, json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> "Connection":
        """Read what `write` wrote; raises FileNotFoundError."""
        return Connection(**json.loads(path.read_text()))
