import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from queueing.draft import Draft
from queueing.files import FileLabel, FilePurpose
from queueing.job import DEFAULT_TENANT
from queueing.store import connect
from tests.support.batch_bench import BatchBench, a_line, as_jsonl
from workers.file_sweep import FileSweep

HOUR_S = 3_600
LINES = as_jsonl(a_line(f"line-{index}") for index in range(6))


@pytest.fixture
def bench(redis_url, tmp_path) -> Iterator[BatchBench]:
    client = connect(redis_url)
    yield BatchBench(client, tmp_path)
    client.close()


@pytest.fixture
def sweep(bench) -> FileSweep:
    return FileSweep(bench.files, bench.batches, bench.data_dir)


def make_old(path: Path) -> None:
    instant_s = path.stat().st_mtime - HOUR_S - 1
    os.utime(path, (instant_s, instant_s))


def make_all_old(folder: Path) -> None:
    for path in folder.iterdir():
        make_old(path)


def test_a_file_goes_when_its_lifetime_is_over_and_not_before(bench, sweep):
    with bench.files.draft() as draft:
        label = FileLabel("a", FilePurpose.USER_DATA, ttl_s=HOUR_S)
        file_id = bench.files.publish(draft, label, DEFAULT_TENANT).id
    make_all_old(bench.files.folder)
    assert sweep.sweep() == 0

    bench.clock.advance(ms=HOUR_S * 1_000)

    assert bench.files.get(file_id, DEFAULT_TENANT) is None
    assert sweep.sweep() == 1
    assert list(bench.files.folder.iterdir()) == []
    assert bench.client.keys("{pm}:file*") == []
    assert bench.client.keys("{pm}:tenant:*") == []


def test_an_expired_file_that_a_live_batch_reads_stays_until_the_batch_has_ended(bench, sweep):
    month_ms = 31 * 86_400_000
    batch_id = bench.create(LINES, window_s=40 * 86_400)
    bench.tick()
    bench.clock.advance(ms=month_ms)

    assert sweep.sweep() == 0
    bench.check_conserved(bench.settle(batch_id), [f"line-{index}" for index in range(6)])
    bench.clock.advance(ms=HOUR_S * 1_000)
    assert sweep.sweep() == 1


def test_a_draft_whose_writer_died_goes_after_an_hour(bench, sweep):
    draft = Draft(bench.files.folder)
    draft.write(b"half a fi")
    assert sweep.sweep() == 0

    make_old(draft.path)

    assert sweep.sweep() == 1
    assert list(bench.files.folder.iterdir()) == []
    draft.discard()


def test_bytes_that_never_got_a_record_go_after_an_hour(bench, sweep):
    known = bench.upload(LINES)
    with bench.files.draft() as draft:
        bench.files.place(draft)
    assert sweep.sweep() == 0

    make_all_old(bench.files.folder)

    assert sweep.sweep() == 1
    with bench.files.open(known) as stream:
        assert stream.read() == LINES


def test_segments_that_count_stay_and_those_nobody_names_go(bench, sweep):
    batch_id = bench.create(LINES, window=4)
    bench.tick()
    bench.serve(4)
    bench.tick()
    folder = bench.data_dir / "batches" / batch_id
    (folder / "999-1.output").write_text("of a tick that died\n")
    assert len(list(folder.iterdir())) == 2
    make_all_old(folder)

    assert sweep.sweep() == 1

    bench.check_conserved(bench.settle(batch_id), [f"line-{index}" for index in range(6)])


def test_what_is_left_of_an_ended_batch_goes_with_its_folder(bench, sweep):
    batch = bench.settle(bench.create(LINES))
    folder = bench.data_dir / "batches" / batch.id
    folder.mkdir()
    (folder / "1-1.output").write_text("left by a kill\n")
    assert sweep.sweep() == 0

    make_all_old(folder)

    assert sweep.sweep() == 1
    assert not folder.exists()


def test_a_sweep_that_was_just_made_is_not_repeated(bench, sweep):
    sweep.sweep_when_due()
    with bench.files.draft() as draft:
        bench.files.place(draft)
    make_all_old(bench.files.folder)

    sweep.sweep_when_due()

    assert len(list(bench.files.folder.iterdir())) == 1
