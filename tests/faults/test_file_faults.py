"""F10 and F11: a full disk, or a killed API, while a file comes in or a batch is written."""

import hashlib
import io
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.registry import Provenance, write_manifest
from queueing.errors import StorageFull
from queueing.files import FileLabel, FilePurpose, FileStore, StoredFile
from queueing.job import DEFAULT_TENANT, Idempotency
from queueing.pages import PageQuery
from queueing.store import connect
from tests.support.api_server import ApiServer
from tests.support.batch_bench import BatchBench, a_line, as_jsonl
from tests.support.fuse import Fuse, Killed, fused_client, fused_disk
from tests.support.small_disk import files_limited_to
from tests.support.tiny_model import write_tiny_model
from workers.file_sweep import FileSweep

IDS = [f"line-{index}" for index in range(8)]
LINES = as_jsonl(map(a_line, IDS))
KEY = {"Authorization": "Bearer pm_test-key"}


@pytest.fixture
def bench(redis_url, tmp_path) -> Iterator[BatchBench]:
    client = connect(redis_url)
    yield BatchBench(client, tmp_path / "data")
    client.close()


@pytest.fixture
def server(redis_url, tmp_path) -> Iterator[ApiServer]:
    folder = write_tiny_model(tmp_path / "tiny")
    write_manifest(folder, Provenance(name="tiny"))
    server = ApiServer(
        tmp_path / "api.log",
        {
            "redis_url": redis_url,
            "models": f'["{folder}"]',
            "data_dir": str(tmp_path / "data"),
            "api_key": "pm_test-key",
        },
    )
    server.start()
    yield server
    server.stop()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.fault("F10")
def test_uploads_on_a_full_disk_leave_no_trace(bench):
    kept = bench.upload(LINES)
    before = names_in(bench.files.folder)

    for _ in range(20):
        with files_limited_to(10_000), pytest.raises(StorageFull):
            bench.upload(b"x" * 100_000)

    assert names_in(bench.files.folder) == before
    assert [file.id for file in all_files(bench.files)] == [kept]
    assert bench.upload(b"x" * 100_000)


@pytest.mark.fault("F10")
def test_a_batch_waits_while_the_disk_is_full_and_then_goes_on(bench):
    batch_id = bench.create(LINES)
    bench.tick()
    bench.serve(8)
    with files_limited_to(100):
        bench.tick()
    folder = bench.data_dir / "batches" / batch_id

    waiting = bench.read(batch_id)
    assert waiting.progress.num_accounted == 0
    assert names_in(folder) == []
    assert bench.claim_tick() is None

    bench.check_conserved(bench.settle(batch_id), IDS)
    assert set(bench.num_runs.values()) == {1}


@pytest.mark.fault("F10")
def test_a_batch_whose_last_files_do_not_fit_waits_and_then_goes_on(bench):
    batch_id = bench.create(LINES, window=8)
    bench.tick()
    bench.serve(8)
    # Four lines a segment fit; the eight of the whole file do not.
    with files_limited_to(2_600):
        bench.tick()

    waiting = bench.read(batch_id)
    assert waiting.progress.num_accounted == 8
    assert waiting.output_file is None

    bench.check_conserved(bench.settle(batch_id), IDS)


@pytest.mark.fault("F11")
def test_an_upload_killed_before_any_of_its_effects_is_whole_or_unknown_and_safe_to_repeat(
    bench, redis_url
):
    fuse = Fuse()
    client = fused_client(redis_url, fuse)
    files = FileStore(client, bench.data_dir, clock=bench.clock)
    label = FileLabel("lines.jsonl", FilePurpose.BATCH)
    num_effects = 0
    is_killed = True
    while is_killed:
        once = Idempotency("files", f"key-{num_effects}", hashlib.sha256(LINES).hexdigest())
        fuse.set(num_effects)
        is_killed = publish(files, fuse, label, once)
        for file in all_files(bench.files):
            with bench.files.open(file.id) as stream:
                assert hashlib.sha256(stream.read()).hexdigest() == file.sha256
        fuse.set(None)
        publish(files, fuse, label, once)
        num_effects += 1
        assert len(all_files(bench.files)) == num_effects

    assert num_effects > 5
    FileSweep(bench.files, bench.batches, bench.data_dir, min_age_s=0).sweep()
    assert len(names_in(bench.files.folder)) == num_effects
    client.close()


@pytest.mark.fault("F11")
def test_an_api_killed_in_the_middle_of_an_upload_has_no_such_file(server, bench):
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer pm_test-key\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 9000000\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        '--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + b"x" * 1_000_000)
        wait_for_a_draft(server, bench)
        server.kill9()
    server.start()

    listed = httpx.get(f"{server.url}/v1/files", headers=KEY).json()
    again = httpx.post(
        f"{server.url}/v1/files",
        headers=KEY,
        files={"file": ("a.jsonl", io.BytesIO(LINES))},
        data={"purpose": "batch"},
    ).json()

    assert listed["data"] == []
    assert again["bytes"] == len(LINES)
    assert FileSweep(bench.files, bench.batches, bench.data_dir, min_age_s=0).sweep() == 1
    assert names_in(bench.files.folder) == [again["id"].removeprefix("file-")]


def publish(files: FileStore, fuse: Fuse, label: FileLabel, once: Idempotency) -> bool:
    """Upload with what the fuse allows; True when it burnt through."""
    try:
        with fused_disk(fuse), files.draft() as draft:
            draft.write(LINES)
            files.publish(draft, label, DEFAULT_TENANT, once)
    except Killed:
        return True
    return False


def all_files(files: FileStore) -> list[StoredFile]:
    return files.page(DEFAULT_TENANT, PageQuery(limit=1_000)).items


def wait_for_a_draft(server: ApiServer, bench: BatchBench) -> None:
    """Return once the API has begun to store what it was sent."""
    for _ in range(500):
        if bench.files.folder.is_dir() and any(
            path.stat().st_size > 0 for path in bench.files.folder.iterdir()
        ):
            return
        httpx.get(f"{server.url}/livez")
    raise AssertionError("nothing was stored")
