import io
import json
import os
from pathlib import Path

import pytest

from queueing.files import FilePurpose
from tests.support.batch_bench import a_line, as_jsonl

LINES = as_jsonl([a_line("a"), a_line("b")])
MAX_FILE_BYTES = 50_000


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"max_file_bytes": MAX_FILE_BYTES})


@pytest.fixture
def folder(settings) -> Path:
    folder: Path = settings.data_dir / "files"
    return folder


def upload(client, content=LINES, *, name="lines.jsonl", headers=None, **fields):
    form = {"purpose": "batch", "file": (io.BytesIO(content), name)} | fields
    return client.post("/v1/files", data=form, headers=headers)


def error_of(response) -> tuple[int, str, str | None]:
    return response.status_code, response.json["error"]["code"], response.json["error"]["param"]


def test_an_uploaded_file_is_stored_and_described(client):
    response = upload(client)

    file = response.json
    assert response.status_code == 200
    assert file["id"].startswith("file-")
    assert file["object"] == "file"
    assert file["bytes"] == len(LINES)
    assert file["filename"] == "lines.jsonl"
    assert file["purpose"] == "batch"
    assert file["status"] == "processed"
    assert file["expires_at"] - file["created_at"] == 30 * 86_400
    assert client.get(f"/v1/files/{file['id']}").json == file


def test_the_content_comes_back_byte_for_byte_and_never_as_a_page(client):
    content = b"<script>alert(1)</script>\x00\xff\r\n--not-the-boundary"
    file = upload(client, content, name="page.html", purpose="user_data").json

    with client.get(f"/v1/files/{file['id']}/content") as response:
        assert response.data == content
    assert response.headers["Content-Length"] == str(len(content))
    assert response.mimetype == "application/octet-stream"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Disposition"] == "attachment; filename=page.html"


def test_a_deleted_file_is_gone_from_everywhere(client, folder):
    file_id = upload(client).json["id"]

    response = client.delete(f"/v1/files/{file_id}")

    assert response.json == {"id": file_id, "object": "file", "deleted": True}
    assert client.get(f"/v1/files/{file_id}").status_code == 404
    assert client.get(f"/v1/files/{file_id}/content").status_code == 404
    assert client.delete(f"/v1/files/{file_id}").status_code == 404
    assert client.get("/v1/files").json["data"] == []
    assert list(folder.iterdir()) == []


def test_files_are_listed_in_pages_by_cursor(client):
    ids = [upload(client).json["id"] for _ in range(5)]
    listed = client.get("/v1/files?order=asc").json["data"]

    first = client.get("/v1/files?limit=2&order=asc").json
    rest = client.get(f"/v1/files?limit=3&order=asc&after={first['last_id']}").json

    assert {file["id"] for file in listed} == set(ids)
    assert first["data"] + rest["data"] == listed
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert client.get("/v1/files").json["data"] == listed[::-1]


def test_files_are_listed_by_purpose(client):
    upload(client)
    wanted = upload(client, purpose="user_data").json

    assert client.get("/v1/files?purpose=user_data").json["data"] == [wanted]
    assert client.get("/v1/files?purpose=batch_output").json["data"] == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=10001", "limit=x", "limit=%D9%A1", "order=up", "purpose=no", "before=x"],
)
def test_a_query_out_of_bounds_is_refused_by_name(client, query):
    status, _, param = error_of(client.get(f"/v1/files?{query}"))

    assert (status, param) == (400, query.partition("=")[0])


def test_a_cursor_that_is_no_file_of_the_tenants_is_unknown(client):
    assert error_of(client.get(f"/v1/files?after=file-{'0' * 22}"))[:2] == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["file-", "file-..%2f..%2fetc", "file-" + "a" * 23, "file-" + "a" * 21 + "%00", "x"]
)
def test_what_is_no_id_is_not_found(client, path):
    assert client.get(f"/v1/files/{path}").status_code == 404
    assert client.get(f"/v1/files/{path}/content").status_code == 404
    assert client.delete(f"/v1/files/{path}").status_code == 404


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "filename=passwd"),
        ("CON", "filename=CON"),
        ("/", "filename=file"),
        ("žluť.jsonl", "filename=_lu_.jsonl; filename*=UTF-8''%C5%BElu%C5%A5.jsonl"),
        ("a b;c.jsonl", 'filename="a b;c.jsonl"'),
    ],
)
def test_a_file_name_is_metadata_only(client, folder, name, shown):
    file = upload(client, name=name).json

    with client.get(f"/v1/files/{file['id']}/content") as response:
        assert response.status_code == 200

    assert file["filename"] == name
    assert [path.name for path in folder.iterdir()] == [file["id"].removeprefix("file-")]
    assert response.headers["Content-Disposition"] == f"attachment; {shown}"


@pytest.mark.parametrize("name", ["a\x00b", "a\x1b[31m", "x" * 513, "a\u202eb"])
def test_a_file_name_with_control_characters_or_without_end_is_refused(client, folder, name):
    boundary = "b"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        f"x\r\n--{boundary}--\r\n"
    )
    response = client.post(
        "/v1/files",
        data=body.encode(),
        content_type=f"multipart/form-data; boundary={boundary}",
    )

    assert error_of(response) == (400, "invalid_request", "file")
    assert list(folder.iterdir()) == []


def test_a_file_over_the_limit_is_refused_and_leaves_nothing(client, folder):
    response = upload(client, b"x" * (MAX_FILE_BYTES + 1))

    assert error_of(response) == (413, "file_too_large", "file")
    assert list(folder.iterdir()) == []


def test_an_announced_length_far_over_the_limit_is_refused_before_it_is_read(client, folder):
    response = upload(client, b"x" * (MAX_FILE_BYTES + 400_000))

    assert error_of(response) == (413, "file_too_large", "file")
    assert list(folder.iterdir()) == []


def test_a_file_of_exactly_the_limit_is_taken(client):
    response = upload(client, b"x" * MAX_FILE_BYTES, purpose="user_data")

    assert response.json["bytes"] == MAX_FILE_BYTES


def test_a_body_that_stops_half_way_leaves_nothing(client, folder):
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{"custom_id"'

    response = client.post("/v1/files", data=body, content_type="multipart/form-data; boundary=b")

    assert error_of(response) == (400, "invalid_request", None)
    assert list(folder.iterdir()) == []
    assert client.get("/v1/files").json["data"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": ""}, "purpose"),
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "batch_output"}, "purpose"),
        ({"tenant": "other"}, "tenant"),
        ({"purpose": ["batch", "batch"]}, "purpose"),
        ({"file": "no file part"}, "file"),
        ({"second": b"x"}, "file"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after[seconds]",
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1e9"},
            "expires_after[seconds]",
        ),
    ],
)
def test_a_field_that_is_wrong_is_refused_by_name(client, folder, fields, param):
    given = {
        name: (io.BytesIO(value), "x") if isinstance(value, bytes) else value
        for name, value in fields.items()
    }
    form = {"purpose": "batch", "file": (io.BytesIO(LINES), "a.jsonl")} | given

    response = client.post("/v1/files", data=form, content_type="multipart/form-data")

    assert (response.status_code, response.json["error"]["param"]) in [
        (400, param),
        (400, "file" if "file" in fields else param),
    ]
    assert list(folder.iterdir()) == []


def test_a_lifetime_can_be_asked_for(client):
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}

    file = upload(client, **fields).json

    assert file["expires_at"] - file["created_at"] == 7_200


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json"},
        {"Content-Type": "multipart/form-data"},
        {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": "gzip"},
    ],
)
def test_a_body_of_another_kind_is_refused(client, headers):
    response = client.post("/v1/files", data=b"{}", headers=headers)

    assert response.status_code == 415


def test_a_form_of_too_many_parts_is_refused(client):
    many = {f"field{index}": "x" for index in range(100)}

    assert upload(client, **many).status_code == 413


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a diary", "line 1: invalid JSON"),
        (b'{"custom_id": "a"}\n', "line 1: method is missing"),
        (LINES.decode().encode("utf-16"), "line 1: the file is UTF-16"),
        (b"\n\n[1]\n", "line 3: the body must be a JSON object"),
    ],
)
def test_what_can_not_be_a_batchs_input_says_so_at_once(client, content, reason):
    file = upload(client, content).json

    assert file["status"] == "error"
    assert file["status_details"].startswith(reason)


def test_a_repeat_with_the_same_key_is_the_same_file(client, folder):
    headers = {"Idempotency-Key": "once"}

    first, second = upload(client, headers=headers), upload(client, headers=headers)

    assert first.json == second.json
    assert len(list(folder.iterdir())) == 1


def test_another_file_under_the_same_key_is_a_conflict(client, folder):
    headers = {"Idempotency-Key": "once"}
    upload(client, headers=headers)

    response = upload(client, LINES + LINES, headers=headers)

    assert error_of(response)[:2] == (409, "idempotency_conflict")
    assert response.headers["x-should-retry"] == "false"
    assert len(list(folder.iterdir())) == 1


def test_a_full_disk_is_507_and_leaves_nothing(client, folder, monkeypatch):
    def refuse(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    upload(client)
    monkeypatch.setattr(os, "fsync", refuse)
    response = upload(client)

    assert error_of(response)[:2] == (507, "insufficient_storage")
    assert len(list(folder.iterdir())) == 1
    monkeypatch.undo()
    assert upload(client).status_code == 200


def test_only_known_purposes_exist():
    assert {purpose.value for purpose in FilePurpose} == {"batch", "batch_output", "user_data"}


def test_no_answer_needs_more_than_ascii(client):
    response = upload(client, name="žluť.jsonl")

    assert response.data.isascii()
    assert json.loads(response.data)["filename"] == "žluť.jsonl"
