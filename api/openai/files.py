"""OpenAI's files: upload, list, retrieve, content, delete.

Owns how a multipart body becomes a stored file without ever being in memory, and the file object.
A file of purpose `batch` is looked at on arrival: what can't be the input of a batch is stored all
the same, with status `error` and the reason in `status_details`.
"""

import io
from pathlib import PurePosixPath
from typing import IO, Any, cast
from urllib.parse import quote

from flask import Blueprint, Response, jsonify, request
from werkzeug.datastructures import FileStorage, MultiDict
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import MultiPartParser
from werkzeug.http import dump_options_header
from werkzeug.wsgi import wrap_file

from api.auth import current_tenant
from api.drain import Drain
from api.idempotency import read_idempotency
from api.openai.lists import list_object, read_page_query
from queueing.batch_input import InputRules
from queueing.draft import Draft
from queueing.errors import FailureCode, RequestError
from queueing.files import MONTH_S, FileLabel, FilePurpose, FileStore, StoredFile

_UPLOADABLE = (FilePurpose.BATCH, FilePurpose.USER_DATA)
_EXPIRES_ANCHOR, _EXPIRES_SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _EXPIRES_ANCHOR, _EXPIRES_SECONDS)
_MIN_TTL_S = 3_600
_MAX_NAME = 512
_MAX_PARTS = 8
_READ_BYTES = 65_536
# Beside the file: boundaries, part headers and short fields.
_FORM_BYTES = 262_144
_MAX_LIMIT = 10_000


class FileRoutes:
    """The handlers of /v1/files. They hold nothing of a request."""

    def __init__(
        self, files: FileStore, rules: InputRules, drain: Drain, *, max_file_bytes: int
    ) -> None:
        self._files = files
        self._rules = rules
        self._drain = drain
        self._max_file_bytes = max_file_bytes

    def blueprint(self) -> Blueprint:
        """Return the routes, to be registered once."""
        blueprint = Blueprint("files", __name__, url_prefix="/v1/files")
        one = '/<id("file-"):file_id>'
        blueprint.add_url_rule("", view_func=self.upload, methods=["POST"])
        blueprint.add_url_rule("", view_func=self.list, methods=["GET"])
        blueprint.add_url_rule(one, view_func=self.retrieve, methods=["GET"])
        blueprint.add_url_rule(one, view_func=self.delete, methods=["DELETE"])
        blueprint.add_url_rule(f"{one}/content", view_func=self.content, methods=["GET"])
        return blueprint

    def upload(self) -> Response:
        """Store one file. It is known once all of it is on disk, or not at all."""
        self._drain.refuse_new_work()
        with self._files.draft(self._max_file_bytes) as draft:
            fields, filename = self._receive(draft)
            purpose = _purpose(fields)
            label = FileLabel(
                filename, purpose, _ttl_s(fields), note=self._first_look(draft, purpose)
            )
            asked = {**fields, "filename": filename, "sha256": draft.sha256}
            idempotency = read_idempotency("files", asked)
            stored = self._files.publish(draft, label, current_tenant().name, idempotency)
        return jsonify(file_object(stored))

    def list(self) -> Response:
        """Return a page of the tenant's files."""
        query, filters = read_page_query(
            "order", "purpose", default_limit=_MAX_LIMIT, max_limit=_MAX_LIMIT
        )
        purpose = filters.get("purpose")
        if purpose is not None and purpose not in list(FilePurpose):
            raise RequestError(FailureCode.INVALID_REQUEST, "no such purpose", "purpose")
        page = self._files.page(
            current_tenant().name, query, FilePurpose(purpose) if purpose else None
        )
        return jsonify(list_object([file_object(file) for file in page.items], page.has_more))

    def retrieve(self, file_id: str) -> Response:
        """Return what is known of a file."""
        return jsonify(file_object(self._stored(file_id)))

    def delete(self, file_id: str) -> Response:
        """Forget a file and remove its bytes, unless a live batch reads it."""
        if not self._files.delete(file_id, current_tenant().name):
            raise _not_found()
        return jsonify(id=file_id, object="file", deleted=True)

    def content(self, file_id: str) -> Response:
        """Return a file's bytes. Whatever they are, no browser takes them for a page."""
        stored = self._stored(file_id)
        try:
            stream = self._files.open(file_id)
        except FileNotFoundError as error:
            raise _not_found() from error
        response = Response(
            wrap_file(request.environ, stream),
            mimetype="application/octet-stream",
            direct_passthrough=True,
        )
        response.content_length = stored.size_bytes
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Content-Disposition"] = _attachment(stored.filename)
        return response

    def _stored(self, file_id: str) -> StoredFile:
        stored = self._files.get(file_id, current_tenant().name)
        if stored is None:
            raise _not_found()
        return stored

    def _receive(self, draft: Draft) -> tuple[dict[str, str], str]:
        """Stream the body's file into `draft`; return its other fields and the file's name."""
        boundary = _boundary()
        request.max_content_length = self._max_file_bytes + _FORM_BYTES
        parts = MultiPartParser(
            stream_factory=_OneFile(draft).begin,
            max_form_memory_size=_FORM_BYTES,
            max_form_parts=_MAX_PARTS,
            buffer_size=_READ_BYTES,
        )
        try:
            fields, files = parts.parse(request.stream, boundary, request.content_length)
        except RequestEntityTooLarge as error:
            message = f"the upload is larger than {self._max_file_bytes} bytes"
            raise RequestError(FailureCode.FILE_TOO_LARGE, message, "file") from error
        except ValueError as error:
            message = "the body is not complete multipart/form-data"
            raise RequestError(FailureCode.INVALID_REQUEST, message) from error
        return _single_fields(fields), _filename(files)

    def _first_look(self, draft: Draft, purpose: FilePurpose) -> str | None:
        if purpose is not FilePurpose.BATCH:
            return None
        with draft.read_back() as stream:
            fault = self._rules.check_head(stream)
        return f"line {fault.line}: {fault.message}" if fault else None


class _OneFile:
    """Gives the first file of a form its place, and refuses a second one."""

    def __init__(self, draft: Draft) -> None:
        self._draft: Draft | None = draft

    def begin(
        self,
        total_content_length: int | None,
        content_type: str | None,
        filename: str | None,
        content_length: int | None = None,
    ) -> IO[bytes]:
        """Return where the part's bytes go."""
        del total_content_length, content_type, filename, content_length
        draft, self._draft = self._draft, None
        if draft is None:
            raise RequestError(FailureCode.INVALID_REQUEST, "send one file", "file")
        return cast("IO[bytes]", _DraftStream(draft))


class _DraftStream(io.RawIOBase):
    """A draft as the form parser writes it."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def write(self, data: Any) -> int:  # the parser writes bytes
        """Append to the draft."""
        return self._draft.write(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Do nothing: the parser rewinds a finished part for whoever reads it next."""
        del offset, whence
        return 0


def file_object(file: StoredFile) -> dict[str, Any]:
    """Return a file in OpenAI's shape."""
    status = {"status": "error", "status_details": file.note} if file.note else {}
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(file.created_s),
        "expires_at": int(file.expires_s),
        "filename": file.filename,
        "purpose": file.purpose.value,
        "status": "processed",
    } | status


def _boundary() -> bytes:
    if request.headers.get("Content-Encoding", "identity") != "identity":
        message = "compressed bodies are not taken"
        raise RequestError(FailureCode.UNSUPPORTED_MEDIA_TYPE, message)
    boundary = request.mimetype_params.get("boundary", "")
    if request.mimetype != "multipart/form-data" or not boundary:
        message = "the body must be multipart/form-data"
        raise RequestError(FailureCode.UNSUPPORTED_MEDIA_TYPE, message)
    return boundary.encode("ascii", "replace")


def _single_fields(fields: "MultiDict[str, str]") -> dict[str, str]:
    for name, values in fields.lists():
        if name not in _FIELDS:
            message = "unknown parameter"
            raise RequestError(FailureCode.UNKNOWN_PARAMETER, message, str(name)[:64])
        if len(values) > 1:
            raise RequestError(FailureCode.INVALID_REQUEST, f"{name} is given twice", name)
    return fields.to_dict()


def _filename(files: "MultiDict[str, FileStorage]") -> str:
    names = list(files)
    if names != ["file"]:
        message = "send the file's content as the part `file`, with a file name"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "file")
    filename = files["file"].filename or ""
    if not 1 <= len(filename) <= _MAX_NAME or not filename.isprintable():
        message = f"the file's name must have 1 to {_MAX_NAME} characters, none of them control"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "file")
    return filename


def _purpose(fields: dict[str, str]) -> FilePurpose:
    purpose = fields.get("purpose")
    if purpose not in [one.value for one in _UPLOADABLE]:
        message = f"purpose must be {' or '.join(_UPLOADABLE)}"
        raise RequestError(FailureCode.INVALID_REQUEST, message, "purpose")
    return FilePurpose(purpose)


def _ttl_s(fields: dict[str, str]) -> int:
    if _EXPIRES_ANCHOR not in fields and _EXPIRES_SECONDS not in fields:
        return MONTH_S
    if fields.get(_EXPIRES_ANCHOR) != "created_at":
        message = "expires_after counts from created_at only"
        raise RequestError(FailureCode.INVALID_REQUEST, message, _EXPIRES_ANCHOR)
    seconds = fields.get(_EXPIRES_SECONDS, "")
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) <= 9
    if not is_number or not _MIN_TTL_S <= int(seconds) <= MONTH_S:
        message = f"must be an integer from {_MIN_TTL_S} to {MONTH_S}"
        raise RequestError(FailureCode.INVALID_REQUEST, message, _EXPIRES_SECONDS)
    return int(seconds)


def _attachment(filename: str) -> str:
    """Return a header that names the file; what looks like a path loses its folders."""
    name = PurePosixPath(filename.replace("\\", "/")).name or "file"
    plain = name.encode("ascii", "replace").decode().replace("?", "_")
    options = {"filename": plain}
    if plain != name:
        options["filename*"] = f"UTF-8''{quote(name, safe='')}"
    return dump_options_header("attachment", options)


def _not_found() -> RequestError:
    return RequestError(FailureCode.NOT_FOUND, "there is no such file")
