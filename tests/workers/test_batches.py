from collections.abc import Iterator

import pytest

from queueing.batch import BatchStatus
from queueing.batch_store import BatchFiles
from queueing.errors import StaleLease
from queueing.job import DEFAULT_TENANT, Priority, generate_queue
from queueing.queue import QueueLimits
from queueing.store import connect
from tests.support.batch_bench import MODEL, OTHER_MODEL, WEIGHT, BatchBench, a_line, as_jsonl
from workers.batch_lines import TickLimits


@pytest.fixture
def bench(redis_url, tmp_path) -> Iterator[BatchBench]:
    client = connect(redis_url)
    yield BatchBench(client, tmp_path)
    client.close()


def ids(number: int) -> list[str]:
    return [f"line-{index}" for index in range(number)]


def test_every_line_is_answered_once_in_the_output_file(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(30))))

    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.COMPLETED
    assert batch.error_file is None
    bench.check_conserved(batch, ids(30))
    assert set(bench.num_runs.values()) == {1}


def test_a_batch_without_good_lines_has_no_output_file(bench):
    batch_id = bench.create(as_jsonl([a_line("bad", model="unknown")]))

    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.COMPLETED
    assert batch.output_file is None
    bench.check_conserved(batch, ["bad"])


def test_lines_that_can_not_run_go_to_the_error_file_and_never_to_a_worker(bench):
    lines = [
        a_line("good"),
        a_line("model", model="unknown"),
        a_line("long", "word " * 100),
        a_line("parameter", temperature="hot"),
        a_line("stream", stream=True),
    ]
    batch = bench.settle(bench.create(as_jsonl(lines)))

    errors = {line["custom_id"]: line["response"] for line in bench.lines(batch.error_file)}
    codes = {name: response["body"]["error"]["code"] for name, response in errors.items()}
    statuses = {name: response["status_code"] for name, response in errors.items()}
    assert codes == {
        "model": "model_not_found",
        "long": "context_length_exceeded",
        "parameter": "invalid_request",
        "stream": "unsupported_parameter",
    }
    assert statuses == {"model": 404, "long": 400, "parameter": 400, "stream": 400}
    assert sum(bench.num_runs.values()) == 1


def test_a_line_that_fails_in_the_engine_is_one_lines_problem(bench):
    lines = [a_line("a"), a_line("b", "fail please"), a_line("c")]

    batch = bench.settle(bench.create(as_jsonl(lines)))

    (error,) = bench.lines(batch.error_file)
    assert error["custom_id"] == "b"
    assert error["error"] is None
    assert error["response"]["status_code"] == 500
    assert error["response"]["body"]["error"]["code"] == "engine_error"
    bench.check_conserved(batch, ["a", "b", "c"])


def test_output_lines_have_the_shape_of_the_wire_format(bench):
    batch = bench.settle(bench.create(as_jsonl([a_line("only")])))

    (line,) = bench.lines(batch.output_file)
    assert line.keys() == {"id", "custom_id", "response", "error"}
    assert line["id"].startswith("batch_req_")
    assert line["error"] is None
    assert line["response"]["request_id"].startswith("req_")
    assert line["response"]["body"]["object"] == "chat.completion"
    assert line["response"]["body"]["created"] == bench.clock.now_ms() // 1000
    assert line["response"]["body"]["model"] == MODEL


def test_a_small_window_bounds_what_is_queued(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(40))), window=6)
    most_live = 0
    while not bench.read(batch_id).status.is_terminal:
        if not bench.tick() and not bench.serve(1):
            bench.clock.advance(ms=1_000)
        most_live = max(most_live, len(bench.batches.live(batch_id)))

    assert most_live == 6
    bench.check_conserved(bench.read(batch_id), ids(40))


def test_faults_of_the_file_fail_the_batch_with_line_numbers(bench):
    content = as_jsonl([a_line("a"), a_line("b")]) + b"{\n" + as_jsonl([a_line("a")])

    batch = bench.settle(bench.create(content))

    assert batch.status is BatchStatus.FAILED
    assert [(fault.code, fault.line) for fault in batch.progress.faults] == [
        ("invalid_json_line", 3),
        ("duplicate_custom_id", 4),
    ]
    assert batch.output_file is None
    assert batch.error_file is None
    assert not bench.num_runs


def test_the_input_file_can_be_deleted_once_the_batch_has_failed(bench):
    batch = bench.settle(bench.create(b"{\n"))

    assert bench.files.delete(batch.input_file, DEFAULT_TENANT)


def test_a_mark_at_the_start_of_the_file_is_removed_and_noted(bench):
    batch = bench.settle(bench.create(b"\xef\xbb\xbf" + as_jsonl(map(a_line, ids(3)))))

    assert batch.status is BatchStatus.COMPLETED
    assert "byte order mark" in batch.progress.notes[0]
    bench.check_conserved(batch, ids(3))


def test_windows_line_ends_blank_lines_and_no_last_line_end_are_taken(bench):
    content = as_jsonl(map(a_line, ids(5))).replace(b"\n", b"\r\n\r\n  \n").rstrip()

    batch = bench.settle(bench.create(content))

    bench.check_conserved(batch, ids(5))


def test_cancelling_keeps_what_is_finished_and_accounts_for_the_rest(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(25))), window=10)
    bench.tick()
    bench.serve(5)
    bench.queue.claim(generate_queue(MODEL), "engine", 2)

    bench.batches.cancel(batch_id, DEFAULT_TENANT)
    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.CANCELLED
    bench.check_conserved(batch, ids(25))
    assert batch.progress.completed == 5
    errors = bench.lines(batch.error_file)
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert {line["response"] for line in errors} == {None}
    assert bench.queue.claim(generate_queue(MODEL), "engine", 10) == []


def test_a_batch_cancelled_before_validation_still_accounts_for_its_lines(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(9))))

    bench.batches.cancel(batch_id, DEFAULT_TENANT)
    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.CANCELLED
    bench.check_conserved(batch, ids(9))
    assert not bench.num_runs


def test_a_batch_cancelled_while_its_tick_runs_does_not_come_back(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(3))))
    lease = bench.claim_tick()

    bench.batches.cancel(batch_id, DEFAULT_TENANT)
    bench.ticker.tick(lease)

    assert bench.read(batch_id).status is BatchStatus.CANCELLED


def test_cancelling_an_ended_batch_changes_nothing(bench):
    batch = bench.settle(bench.create(as_jsonl([a_line("a")])))

    assert bench.batches.cancel(batch.id, DEFAULT_TENANT) is BatchStatus.COMPLETED
    assert bench.read(batch.id).status is BatchStatus.COMPLETED


def test_another_tenants_batch_can_be_neither_seen_nor_cancelled(bench):
    batch_id = bench.create(as_jsonl([a_line("a")]))

    assert bench.batches.get(batch_id, "other") is None
    assert bench.batches.cancel(batch_id, "other") is None
    assert bench.read(batch_id).status is BatchStatus.VALIDATING


def test_a_batch_whose_window_is_over_ends_expired_with_every_line(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(20))), window=8, window_s=2)
    bench.tick()
    bench.serve(3)

    bench.clock.advance(ms=2_001)
    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.EXPIRED
    bench.check_conserved(batch, ids(20))
    assert batch.progress.completed == 3
    codes = {line["error"]["code"] for line in bench.lines(batch.error_file)}
    assert codes == {"batch_expired"}


def test_lines_all_done_when_the_window_ends_make_a_completed_batch(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(4))), window_s=2)
    bench.tick()
    bench.serve(4)

    bench.clock.advance(ms=2_001)
    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.COMPLETED
    bench.check_conserved(batch, ids(4))


def test_a_line_lost_too_often_is_dead_with_status_500(bench):
    batch_id = bench.create(as_jsonl([a_line("a"), a_line("killer")]))
    bench.tick()
    bench.serve(1)
    for _ in range(3):
        bench.queue.claim(generate_queue(MODEL), "engine", 1)
        bench.clock.advance(ms=16_000)
        bench.queue.reap(generate_queue(MODEL))

    batch = bench.settle(batch_id)

    (error,) = bench.lines(batch.error_file)
    assert error["response"]["status_code"] == 500
    assert error["response"]["body"]["error"]["code"] == "worker_lost"
    bench.check_conserved(batch, ["a", "killer"])


def test_a_line_whose_job_was_erased_is_still_accounted_for(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(3))))
    bench.tick()
    (job_id, *_) = bench.batches.live(batch_id)
    bench.queue.erase(job_id, DEFAULT_TENANT)

    batch = bench.settle(batch_id)

    bench.check_conserved(batch, ids(3))


def test_a_tick_that_was_taken_over_is_refused_and_changes_nothing(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(12))))
    zombie = bench.claim_tick()
    bench.clock.advance(ms=16_000)
    bench.tick()
    before = bench.read(batch_id)

    with pytest.raises(StaleLease):
        bench.ticker.tick(zombie)

    after = bench.read(batch_id)
    assert (after.progress, after.status) == (before.progress, before.status)
    bench.check_conserved(bench.settle(batch_id), ids(12))


def test_a_full_queue_delays_a_batch_and_loses_nothing(redis_url, tmp_path):
    client = connect(redis_url)
    bench = BatchBench(client, tmp_path, QueueLimits(max_queued_jobs=3))
    batch_id = bench.create(as_jsonl(map(a_line, ids(11))))

    batch = bench.settle(batch_id)

    bench.check_conserved(batch, ids(11))
    assert set(bench.num_runs.values()) == {1}
    client.close()


def test_lines_that_ended_bring_the_tick_forward(bench):
    bench.create(as_jsonl(map(a_line, ids(4))))
    bench.tick()
    assert bench.claim_tick() is None

    bench.serve(4)

    assert bench.claim_tick() is not None


def test_what_ended_while_the_tick_ran_brings_the_next_one_at_once(bench):
    batch_id = bench.create(as_jsonl(map(a_line, ids(4))))
    bench.tick()
    bench.clock.advance(ms=5_000)
    lease = bench.claim_tick()
    seen = bench.read(batch_id)
    bench.serve(4)

    bench.batches.rest(lease, seen, delay_s=5.0)

    assert bench.claim_tick() is not None


def test_a_tick_without_a_batch_ends_its_job(bench):
    batch_id = bench.create(as_jsonl([a_line("a")]))
    bench.client.delete(f"{{pm}}:batch:{batch_id}")

    bench.tick()

    record = bench.queue.get(batch_id, DEFAULT_TENANT)
    assert record.state.is_terminal


def test_a_missing_input_file_fails_the_batch_by_name(bench):
    batch_id = bench.create(as_jsonl([a_line("a")]))
    for path in (bench.data_dir / "files").iterdir():
        path.unlink()

    batch = bench.settle(batch_id)

    assert batch.status is BatchStatus.FAILED
    assert batch.progress.faults[0].code == "input_file_missing"


def test_a_chunk_that_takes_too_long_is_cut_short(bench):
    bench.ticker = bench.make_ticker(bench.client, TickLimits(chunk_s=0.0, max_chunks=1))
    batch_id = bench.create(as_jsonl(map(a_line, ids(6))))

    bench.tick()

    assert bench.read(batch_id).progress.cursor.num_requests == 1
    bench.check_conserved(bench.settle(batch_id), ids(6))


def test_a_repeat_of_the_tick_that_ended_the_batch_does_nothing(bench):
    batch_id = bench.create(b"{")
    lease = bench.claim_tick()
    bench.ticker.tick(lease)
    ended = bench.read(batch_id)

    bench.ticker.tick(lease)

    assert bench.read(batch_id) == ended


def test_a_repeated_finish_is_answered_like_the_first(bench):
    batch_id = bench.create(as_jsonl([a_line("a")]))
    lease = bench.claim_tick()
    batch = bench.read(batch_id)
    bench.batches.finish(lease, batch, BatchStatus.FAILED, BatchFiles())

    status = bench.batches.finish(lease, batch, BatchStatus.FAILED, BatchFiles())

    assert status is BatchStatus.FAILED
    assert bench.client.hget(f"{{pm}}:file:{batch.input_file}", "readers") == "0"


def test_ended_batches_and_their_lines_are_counted(bench):
    bench.settle(bench.create(as_jsonl([a_line("a"), a_line("b", model="unknown")])))
    bench.settle(bench.create(b"{"))

    def sample(name: str, **labels: str) -> float | None:
        value: float | None = bench.registry.get_sample_value(name, labels)
        return value

    assert sample("promptmill_batches_total", status="completed") == 1
    assert sample("promptmill_batches_total", status="failed") == 1
    assert sample("promptmill_batch_requests_finished_total", outcome="completed") == 1
    assert sample("promptmill_batch_requests_finished_total", outcome="failed") == 1
    assert sample("promptmill_batch_duration_seconds_count") == 2


def test_models_of_one_file_each_go_to_their_own_queue(bench):
    lines = [a_line("a"), a_line("b", model=OTHER_MODEL), a_line("c", model="unknown")]
    batch_id = bench.create(as_jsonl(lines))
    bench.tick()

    (other,) = bench.queue.claim(generate_queue(OTHER_MODEL), "engine", 5)
    bench.run(other)
    batch = bench.settle(batch_id)

    bench.check_conserved(batch, ["a", "b", "c"])
    assert batch.progress.completed == 2


def test_lines_carry_their_tenants_weight_and_the_batchs_deadline(bench):
    batch_id = bench.create(as_jsonl([a_line("a")]), window_s=60)
    bench.tick()

    (job_id,) = bench.batches.live(batch_id)
    record = bench.queue.get(job_id, DEFAULT_TENANT)
    assert record.priority is Priority.BULK
    assert record.deadline_s == bench.read(batch_id).expires_s
    assert float(bench.client.hget(f"{{pm}}:job:{job_id}", "weight")) == WEIGHT
