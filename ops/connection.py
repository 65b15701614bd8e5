"""Connection: how the commands of this machine find a running stack, as a small file of its own."""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a stack answers and with which key; written for the commands that talk to it."""

    url: str
    api_key: str
    flower_url: str | None

    def write(self, path: Path) -> None:
        """Write for this user alone; a reader sees all of it or nothing."""
        draft = path.with_name(f".{path.name}")
        draft.unlink(missing_ok=True)
        fields = {"url": self.url, "key": self.api_key, "flower": self.flower_url}
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(fields, file)
        draft.replace(path)

    @staticmethod
    def read(path: Path) -> "Connection":
        """Read what `write` wrote; raises FileNotFoundError."""
        fields = json.loads(path.read_text())
        return Connection(fields["url"], fields["key"], fields["flower"])
