"""Connection: how the commands of this machine find a running stack, as a small file of its own."""

import json
from dataclasses import dataclass
from pathlib import Path

from ops.private_file import write_private


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a stack answers and with which key; written for the commands that talk to it."""

    url: str
    api_key: str
    flower_url: str | None

    def write(self, path: Path) -> None:
        """Write for this user alone."""
        fields = {"url": self.url, "key": self.api_key, "flower": self.flower_url}
        write_private(path, json.dumps(fields))

    @staticmethod
    def read(path: Path) -> "Connection":
        """Read what `write` wrote; raises FileNotFoundError."""
        fields = json.loads(path.read_text())
        return Connection(fields["url"], fields["key"], fields["flower"])
