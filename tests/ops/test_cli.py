"""The command line against a whole stack that `promptmill up` runs on a small model."""

import json
import os
import pty
import signal
import stat
import subprocess
import sys

import psutil
import pytest
from click.testing import CliRunner

from ops.cli import main
from ops.connection import Connection
from tests.support.local_stack import LocalStackProcess, write_named_model
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_named_model(tmp_path_factory.mktemp("model") / "tiny", "tiny")


@pytest.fixture(scope="module")
def stack(tmp_path_factory, model):
    stack = LocalStackProcess(
        tmp_path_factory.mktemp("stack"), "--no-flower", "--model", str(model)
    )
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture
def run(stack):
    """Return a way to run a command that talks to the stack."""
    return lambda *words: CliRunner().invoke(main, words, env=stack.environment)


@pytest.fixture
def another_stack(tmp_path, model):
    """Return a stack that was not started yet."""
    stack = LocalStackProcess(tmp_path / "another", "--no-flower", "--model", str(model))
    yield stack
    stack.stop()


@pytest.fixture
def held_worker(stack):
    """Let the engine worker do nothing during the test."""
    worker = psutil.Process(stack.pid_of("engine1"))
    worker.suspend()
    yield worker
    worker.resume()


def batch_file(folder, *bodies, url="/v1/chat/completions"):
    path = folder / "lines.jsonl"
    lines = (
        {"custom_id": f"line-{n}", "method": "POST", "url": url, "body": body}
        for n, body in enumerate(bodies)
    )
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def is_one_line_error(result, *words):
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return all(word in result.stderr for word in words)


def test_a_prompt_is_answered_on_the_terminal(run):
    answered = run("submit", "Hello", "--max-tokens", "8", "--priority", "realtime", "--wait", "60")

    assert answered.exit_code == 0, answered.output
    assert answered.stdout.strip()
    assert answered.stderr == ""


@pytest.mark.usefixtures("held_worker")
def test_a_job_is_submitted_looked_at_and_cancelled(run):
    submitted = run("submit", "Hello")
    job_id = submitted.stdout.split()[0]
    looked_at = json.loads(run("status", job_id).stdout)
    cancelled = run("cancel", job_id)

    assert submitted.stdout == f"{job_id} queued\n"
    assert (looked_at["id"], looked_at["state"]) == (job_id, "queued")
    assert cancelled.stdout == f"{job_id} cancelled\n"


@pytest.mark.usefixtures("held_worker")
def test_operators_commands_find_the_stacks_own_store(run):
    job_id = run("submit", "Hello", "--priority", "bulk").stdout.split()[0]

    queues, made = run("admin", "queues"), run("keys", "create", "default")
    run("cancel", job_id)

    assert "bulk: 1" in queues.stdout, queues.output
    assert made.stdout.startswith("pm_"), made.output


@pytest.mark.usefixtures("held_worker")
def test_an_answer_that_is_not_there_in_time_is_no_error(run):
    waited = run("submit", "Hello", "--wait", "0.2")

    assert waited.exit_code == 0
    assert waited.stdout.endswith(" queued\n")


@pytest.mark.usefixtures("held_worker")
def test_a_job_that_failed_is_told_on_the_error_stream_with_status_one(run):
    late = run("submit", "Hello", "--deadline", "0.1", "--wait", "20")

    assert late.exit_code == 1
    assert late.stdout == ""
    assert " expired: " in late.stderr


def test_what_the_api_refuses_is_its_own_words_in_one_line(run):
    refused = run("submit", "Hello", "--max-tokens", "100000")

    assert is_one_line_error(refused, "100000", "512", "(context_length_exceeded)")


def test_an_unknown_job_is_one_line(run):
    assert is_one_line_error(run("status", "job_unknown"), "(not_found)")


def test_a_wrong_key_is_one_line(stack, tmp_path):
    Connection(stack.connection.url, "pm-wrong").write(tmp_path / "connection.json")

    refused = CliRunner().invoke(main, ["status", "job_1"], env=talking_to(tmp_path))

    assert is_one_line_error(refused, "(invalid_api_key)")


def test_an_api_that_is_away_is_one_line(tmp_path):
    Connection("http://127.0.0.1:1", "pm-key").write(tmp_path / "connection.json")

    refused = CliRunner().invoke(main, ["submit", "Hello"], env=talking_to(tmp_path))

    assert is_one_line_error(refused, "http://127.0.0.1:1/", "promptmill up")


def test_where_nothing_runs_one_is_told_how_to_start_it(tmp_path):
    refused = CliRunner().invoke(main, ["submit", "Hello"], env=talking_to(tmp_path))

    assert is_one_line_error(refused, "promptmill up", "PROMPTMILL_API_KEY")


def test_a_key_in_the_settings_is_enough_to_talk_to_an_api(stack, tmp_path):
    url, key = stack.connection.url, stack.connection.api_key
    port = url.rpartition(":")[2]
    environment = talking_to(tmp_path) | {"PROMPTMILL_API_PORT": port, "PROMPTMILL_API_KEY": key}

    refused = CliRunner().invoke(main, ["status", "job_unknown"], env=environment)

    assert is_one_line_error(refused, "(not_found)")


def test_a_batch_file_becomes_an_output_and_an_error_file(run, tmp_path):
    file = batch_file(tmp_path, {"model": "tiny", **CHAT}, {"model": "unknown", **CHAT})

    ran = run("batch", "run", str(file), "-o", str(tmp_path / "answers.jsonl"))

    assert ran.exit_code == 0, ran.output
    assert ran.stdout.splitlines()[-1] == "completed: 1 answered, 1 failed"
    assert ran.stderr == ""  # no progress where nobody watches
    (answer,) = (tmp_path / "answers.jsonl").read_text().splitlines()
    (error,) = (tmp_path / "answers.errors.jsonl").read_text().splitlines()
    assert json.loads(answer)["custom_id"] == "line-0"
    assert json.loads(error)["custom_id"] == "line-1"


def test_a_batch_file_may_be_for_another_endpoint(run, tmp_path):
    url = "/v1/completions"
    file = batch_file(tmp_path, {"model": "tiny", "prompt": "Hello", "max_tokens": 4}, url=url)

    ran = run("batch", "run", str(file), "-o", str(tmp_path / "a.jsonl"), "--endpoint", url)

    assert ran.stdout.splitlines()[-1] == "completed: 1 answered, 0 failed"
    answer = json.loads((tmp_path / "a.jsonl").read_text())
    assert answer["response"]["body"]["object"] == "text_completion"


def test_a_batch_file_with_an_unparsable_line_runs_nothing_and_says_which(run, tmp_path):
    file = batch_file(tmp_path, {"model": "tiny", **CHAT})
    file.write_text(file.read_text() + "\n{not json\n")

    refused = run("batch", "run", str(file), "-o", str(tmp_path / "answers.jsonl"))

    assert refused.exit_code == 1
    assert refused.stderr.splitlines()[0].startswith("line 2: ")
    assert refused.stderr.endswith("failed: nothing was run\n")
    assert list(tmp_path.glob("answers*")) == []


def test_a_batch_whose_answers_have_nowhere_to_go_is_not_begun(run, tmp_path):
    file = batch_file(tmp_path, {"model": "tiny", **CHAT})

    refused = run("batch", "run", str(file), "-o", str(tmp_path / "missing" / "answers.jsonl"))

    assert refused.exit_code == 2
    assert "there is no folder" in refused.stderr


def test_a_batch_shows_its_progress_on_a_terminal(stack, tmp_path):
    file = batch_file(tmp_path, {"model": "tiny", **CHAT})
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "ops.cli", "batch", "run"),
            file,
            "-o",
            tmp_path / "answers.jsonl",
        ],
        env=stack.environment | {"TERM": "xterm", "COLUMNS": "80"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)

    shown = b"".join(iter(lambda: read_terminal(ours), b""))
    os.close(ours)

    assert running.wait(timeout=10) == 0
    assert b"1/1" in shown


def test_up_says_where_it_answers_and_keeps_it_to_its_user(stack):
    connection = stack.connection

    assert f"{connection.url}   key {connection.api_key}" in stack.said
    assert stat.S_IMODE(stack.connection_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(stack.data_dir.stat().st_mode) == 0o700


def test_up_starts_a_killed_worker_again(stack):
    killed = stack.pid_of("cpu1")

    os.kill(killed, signal.SIGKILL)

    wait_until(lambda: "cpu1 ended with status -9; starting it again" in stack.said)
    wait_until(lambda: stack.pid_of("cpu1") not in (None, killed))


def test_a_second_up_on_the_same_folder_is_refused(run, stack, model):
    refused = run("up", "--model", str(model))

    assert is_one_line_error(refused, "runs on", str(stack.data_dir), "PROMPTMILL_DATA_DIR")
    assert stack.connection_file.exists()


def test_a_stack_that_was_killed_is_gone_and_the_next_one_finds_its_queue(another_stack):
    another_stack.start()
    family, key = another_stack.family(), another_stack.connection.api_key
    talk = {"env": another_stack.environment}
    # Sooner than its worker has loaded the model.
    job_id = CliRunner().invoke(main, ["submit", "Hello"], **talk).stdout.split()[0]

    another_stack.signal(signal.SIGKILL)
    assert another_stack.wait() == -signal.SIGKILL
    assert psutil.wait_procs(family, timeout=30)[1] == []
    another_stack.start()

    assert another_stack.connection.api_key == key
    wait_until(lambda: state_of(another_stack, job_id) == "completed", 60)


def test_ctrl_c_ends_a_stack_that_is_still_coming_up(another_stack):
    another_stack.begin()
    wait_until(lambda: (another_stack.data_dir / "logs" / "api.log").exists())
    family = another_stack.family()

    another_stack.signal(signal.SIGINT)

    assert another_stack.wait() == 0
    assert [process for process in family if process.is_running()] == []
    assert not another_stack.connection_file.exists()


def read_terminal(descriptor: int) -> bytes:
    """Return what was written to a terminal; nothing once nobody can write any more."""
    try:
        return os.read(descriptor, 4_096)
    except OSError:
        return b""


def talking_to(folder) -> dict[str, str]:
    return {"PROMPTMILL_DATA_DIR": str(folder)}


def state_of(stack: LocalStackProcess, job_id: str) -> str:
    told = CliRunner().invoke(main, ["status", job_id], env=stack.environment)
    return str(json.loads(told.stdout)["state"])
