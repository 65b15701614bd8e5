"""Every example of README.md is run as it stands there, against a stack that README started.

Only the address, the key and what the page leaves open (`...`, a job's id, a receiver, a folder)
are filled in; the model is a small one under the name of the page's.
"""

import json
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ops.cli import main
from ops.client import Client
from ops.settings import Settings
from ops.stack import free_port
from ops.stack_secrets import StackSecrets
from ops.webhook_listener import Heard, WebhookListener
from queueing.clock import SystemClock
from queueing.webhook_signature import WebhookSecret
from tests.support.local_stack import LocalStackProcess
from tests.support.tiny_model import write_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
MODEL = "SmolLM2-135M-Instruct"
CURL = f'curl() {{ {sys.executable} -m tests.support.curl "$@"; }}\n'


def block(marker: str) -> str:
    """Return the one block of the page that holds a text."""
    found = [block for block in BLOCKS if marker in block]
    assert len(found) == 1, marker
    return str(found[0])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return the folder a reader of the page stands in, with a model of his own."""
    place = tmp_path_factory.mktemp("readme")
    write_tiny_model(place / "path" / "to" / MODEL)
    (place / "path" / "to" / "folder").symlink_to(MODEL)
    (place / ".venv").symlink_to(Path(sys.executable).parents[1])
    return place


@pytest.fixture(scope="module")
def hook_port():
    return free_port()


@pytest.fixture(scope="module")
def stack(place, hook_port):
    """Start the stack with the options of all lines of the page that start one."""
    registers, runs = block("model add").splitlines()
    subprocess.run(["bash", "-ec", registers], cwd=place, env=environment(), check=True)
    options = [*options_of(runs), *options_of(block("up --flower"))]
    stack = LocalStackProcess(
        place,
        *(str(place / word) if "/" in word else word for word in options),
        flower_port="0",
        webhook_allow_http="true",
        webhook_allow_networks='["127.0.0.0/8"]',
        webhook_allow_ports=f"[{hook_port}]",
    )
    stack.start()
    wait_for_the_model(stack)
    yield stack
    stack.stop()


@pytest.fixture
def listener(stack, hook_port):
    """Hear webhooks that are signed with the stack's secret."""
    heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
    secret = WebhookSecret.parse(StackSecrets.kept_in(stack.data_dir).webhook_secret)
    listener = WebhookListener(hook_port, [secret], SystemClock(), heard.put)
    thread = threading.Thread(target=listener.serve, daemon=True)
    thread.start()
    yield heard
    listener.close()
    thread.join()


def environment() -> dict[str, str]:
    """Return what a reader's shell has: the page's commands and little else."""
    folder = Path(sys.executable).parent
    return {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": str(REPOSITORY)}


def options_of(line: str) -> list[str]:
    """Return the options of a line that runs `promptmill up`."""
    return line.partition("#")[0].split()[2:]


def wait_for_the_model(stack) -> None:
    client = Client(stack.connection)
    assert client.wait(client.submit(prompt="Hello", max_tokens=1)["id"], 90.0)["finished_at"]
    client.close()


def filled_in(stack, text: str) -> str:
    """Put the stack's address and key where the page's are."""
    address = stack.connection.url.removeprefix("http://")
    key = stack.connection.api_key
    text = text.replace("localhost:8100", address)
    return text.replace("KEY=...", f"KEY={key}").replace('api_key="..."', f'api_key="{key}"')


def run_shell(stack, place, script: str) -> str:
    """Run lines in a shell that stops at the first that fails; return what they print."""
    return subprocess.run(
        ["bash", "-ec", CURL + script],
        cwd=place,
        env=stack.environment | environment(),
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def line_example() -> dict[str, object]:
    """Return the page's example of a line of a bulk file."""
    (text,) = re.findall(r'`(\{"custom_id".*?\})`', PAGE, re.DOTALL)
    messages = json.dumps([{"role": "user", "content": "Hello"}])
    line: dict[str, object] = json.loads(" ".join(text.split()).replace("[...]", messages))
    return line


@pytest.fixture
def lines_file(place):
    (place / "lines.jsonl").write_text(json.dumps(line_example()) + "\n")


def test_each_block_is_one_that_is_run_here():
    markers = ("make demo", "up --flower", "JOB_ID?wait", "webhook_url", "OpenAI(", "model add")

    unknown = [block for block in BLOCKS if not any(marker in block for marker in markers)]

    assert unknown == []


def test_a_job_is_submitted_and_polled(stack, place):
    key, submitting, polling = filled_in(stack, block("JOB_ID?wait")).split("curl -s", 2)

    accepted = json.loads(run_shell(stack, place, f"{key}curl -s{submitting}"))
    polling = polling.replace("JOB_ID", accepted["id"])
    ended = json.loads(run_shell(stack, place, f"{key}curl -s{polling}"))

    assert ended["state"] == "completed"
    assert ended["result"]["text"]


def test_a_job_tells_its_end_by_a_signed_webhook(stack, place, listener, hook_port):
    script = block("webhook_url").replace(
        "https://example.org/hook", f"http://127.0.0.1:{hook_port}/hook"
    )

    accepted = run_shell(stack, place, filled_in(stack, f"KEY=...\n{script}"))

    heard = listener.get(timeout=30)
    assert heard.problem is None
    assert heard.object_id == json.loads(accepted)["id"]


@pytest.mark.usefixtures("lines_file")
def test_a_bulk_file_is_run_by_the_openai_client(stack, place):
    script = filled_in(stack, block("OpenAI("))

    printed = subprocess.run(
        [sys.executable, "-c", script], cwd=place, check=True, capture_output=True, text=True
    ).stdout

    assert json.loads(printed)["custom_id"] == line_example()["custom_id"]


@pytest.mark.usefixtures("lines_file")
@pytest.mark.parametrize("command", ["submit", "batch run"])
def test_the_shell_says_it_shorter(stack, place, command):
    (line,) = re.findall(rf"`(promptmill {command}[^`]*)`", PAGE)

    assert run_shell(stack, place, line)


def test_every_make_target_of_the_page_is_there():
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))

    named = set(re.findall(r"^make ([a-z-]+)$|`make ([a-z-]+)`", PAGE, re.MULTILINE))

    assert {name for pair in named for name in pair if name} <= targets


def test_every_command_of_the_page_is_there():
    named = set(re.findall(r"(?:`|bin/)promptmill ([a-z]+)", PAGE))

    assert named
    assert named <= set(main.commands)


def test_every_setting_of_the_page_is_there():
    named = {name.lower() for name in re.findall(r"PROMPTMILL_([A-Z][A-Z_]+)", PAGE)}

    assert named <= set(Settings.model_fields)


def test_every_file_of_the_page_is_there():
    folders = "|".join(("api", "queueing", "engine", "workers", "ops", "tests", "docs"))
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", PAGE) + re.findall(
        r"\]\((?!http)(.*?)\)", PAGE
    )

    assert named
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
