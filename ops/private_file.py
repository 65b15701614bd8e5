"""Files that hold a secret: readable by their owner alone, from their first byte on."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read; a reader sees all of it or nothing."""
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
