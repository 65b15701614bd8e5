"""FileStore: uploaded and produced files. Bytes on the data disk, everything else in Redis.

Bytes come first and are whole on disk before their record is made; a record goes before its bytes
do. So a file that is known can be read, and a crash between the two leaves bytes that nobody knows,
which the sweep removes. Names that users give are metadata: on disk a file is called by the random
part of its id. Knows nothing of HTTP.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import redis

from queueing import keys
from queueing.clock import Clock
from queueing.draft import Draft
from queueing.errors import FailureCode, IdempotencyConflict, RequestError
from queueing.job import Idempotency, new_id
from queueing.pages import Page, PageQuery, read_page
from queueing.queue import QueueLimits
from queueing.store import Script, translated_errors

MONTH_S = 30 * 86_400


class FilePurpose(StrEnum):
    """What a file is for."""

    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"
    USER_DATA = "user_data"


@dataclass(frozen=True, slots=True)
class FileLabel:
    """What is said of a file when it is made. `note` says what a first look found wrong with it."""

    filename: str
    purpose: FilePurpose
    ttl_s: int = MONTH_S
    note: str | None = None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is known. Instants are seconds of the store's clock."""

    id: str
    tenant: str
    filename: str
    purpose: FilePurpose
    size_bytes: int
    sha256: str
    note: str | None
    created_s: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """Bytes in their final place that no record names yet."""

    id: str
    size_bytes: int
    sha256: str


class FileStore:
    """The files of one installation. Thread-safe: it holds nothing but the client and limits."""

    def __init__(
        self,
        client: "redis.Redis",
        data_dir: Path,
        limits: QueueLimits | None = None,
        *,
        prefix: str = "{pm}:",
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self.data_dir = data_dir
        self._folder = data_dir / "files"
        self._prefix = prefix
        self._clock = clock
        self._limits_json = (limits or QueueLimits()).as_json()
        self._put = Script(client, "file_put", prefix, allow_oom=False)
        self._delete = Script(client, "file_delete", prefix, allow_oom=True)

    @property
    def folder(self) -> Path:
        """Where the bytes are."""
        return self._folder

    @contextmanager
    def draft(self, max_bytes: int | None = None) -> Iterator[Draft]:
        """Begin a file; what was not placed at the end is removed."""
        draft = Draft(self._folder, max_bytes)
        try:
            yield draft
        finally:
            draft.discard()

    def place(self, draft: Draft) -> PlacedFile:
        """Put a draft's bytes in place under a new id, still without a record."""
        file_id = new_id("file-")
        draft.place(self._path(file_id))
        return PlacedFile(file_id, draft.size_bytes, draft.sha256)

    def publish(
        self, draft: Draft, label: FileLabel, tenant: str, idempotency: Idempotency | None = None
    ) -> StoredFile:
        """Make a draft a known file, or return the one that already stands for the request.

        Raises StorageFull, and IdempotencyConflict when the key came with another file.
        """
        placed = self.place(draft)
        asked = {} if idempotency is None else keys.idempotency_fields(tenant, idempotency)
        file = json.dumps(record_of(placed, label))
        outcome, file_id = self._put(*self._head(), tenant, file, json.dumps(asked))
        if outcome != "created":
            self._path(placed.id).unlink()
        if outcome == "conflict":
            raise IdempotencyConflict
        stored = self.get(file_id, tenant)
        if stored is None:
            raise RequestError(FailureCode.NOT_FOUND, "the file was deleted meanwhile")
        return stored

    def get(self, file_id: str, tenant: str) -> StoredFile | None:
        """Return what is known of a file; None for an unknown id, another's, and an expired one."""
        (stored,) = self._fetch([file_id])
        return stored if stored is not None and stored.tenant == tenant else None

    def page(
        self, tenant: str, query: PageQuery, purpose: FilePurpose | None = None
    ) -> Page[StoredFile]:
        """Return a page of a tenant's files."""

        def fetch(ids: Sequence[str]) -> list[StoredFile | None]:
            files = self._fetch(ids)
            return [file if file and purpose in (None, file.purpose) else None for file in files]

        return read_page(self._client, keys.FILES.of(self._prefix, tenant=tenant), query, fetch)

    def delete(self, file_id: str, tenant: str) -> bool:
        """Forget a file and remove its bytes. False when there is no such file.

        Raises RequestError while a batch that has not ended reads it.
        """
        outcome = self._delete(*self._head(), file_id, tenant, "")
        if outcome == "in_use":
            raise RequestError(
                FailureCode.CONFLICT, "a batch that has not ended reads this file; cancel it first"
            )
        if outcome == "deleted":
            self._path(file_id).unlink(missing_ok=True)
        return bool(outcome == "deleted")

    def open(self, file_id: str) -> BinaryIO:
        """Open a known file's bytes; whoever asks has looked up its record."""
        return self._path(file_id).open("rb")

    def delete_expired(self, limit: int) -> int:
        """Delete up to `limit` files whose lifetime is over; return how many. One in use stays."""
        now_ms = self.now_ms()
        expiry = keys.FILE_EXPIRY.of(self._prefix)
        with translated_errors():
            ids: Any = self._client.zrangebyscore(expiry, "-inf", now_ms, start=0, num=limit)
        num_deleted = 0
        for file_id in ids:
            outcome = self._delete(*self._head(), file_id, "", "1")
            if outcome == "in_use":
                self._postpone(file_id, now_ms)
            elif outcome == "deleted":
                self._path(file_id).unlink(missing_ok=True)
                num_deleted += 1
        return num_deleted

    def known(self, names: Sequence[str]) -> set[str]:
        """Return which of these names on disk belong to a file that has a record."""
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                pipeline.exists(keys.FILE.of(self._prefix, id=f"file-{name}"))
            found = pipeline.execute()
        return {name for name, exists in zip(names, found, strict=True) if exists}

    def now_ms(self) -> int:
        """Return the store's time."""
        if self._clock is not None:
            return self._clock.now_ms()
        with translated_errors():
            seconds, microseconds = self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def _head(self) -> tuple[str, str]:
        return (str(self._clock.now_ms()) if self._clock else "", self._limits_json)

    def _path(self, file_id: str) -> Path:
        return self._folder / file_id.removeprefix("file-")

    def _postpone(self, file_id: str, now_ms: int) -> None:
        hour_ms = 3_600_000
        with translated_errors():
            self._client.zadd(
                keys.FILE_EXPIRY.of(self._prefix), {file_id: now_ms + hour_ms}, xx=True
            )

    def _fetch(self, ids: Sequence[str]) -> list[StoredFile | None]:
        with translated_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.time()
            for file_id in ids:
                pipeline.hgetall(keys.FILE.of(self._prefix, id=file_id))
            (seconds, _), *records = pipeline.execute()
        now_s = self._clock.now_ms() / 1000 if self._clock else float(seconds)
        return [
            _stored(file_id, fields, now_s) for file_id, fields in zip(ids, records, strict=True)
        ]


def record_of(placed: PlacedFile, label: FileLabel) -> dict[str, Any]:
    """Return what the scripts' put_file takes."""
    record = {
        "id": placed.id,
        "purpose": label.purpose.value,
        "filename": label.filename,
        "bytes": placed.size_bytes,
        "sha256": placed.sha256,
        "status": "error" if label.note else "processed",
        "ttl_ms": label.ttl_s * 1000,
    }
    return record | ({"note": label.note} if label.note else {})


def _stored(file_id: str, fields: dict[str, str], now_s: float) -> StoredFile | None:
    if not fields:
        return None
    expires_s = int(fields["expires_ms"]) / 1000
    if expires_s <= now_s:
        return None
    return StoredFile(
        id=file_id,
        tenant=fields["tenant"],
        filename=fields["filename"],
        purpose=FilePurpose(fields["purpose"]),
        size_bytes=int(fields["bytes"]),
        sha256=fields["sha256"],
        note=fields.get("note"),
        created_s=int(fields["created_ms"]) / 1000,
        expires_s=expires_s,
    )
