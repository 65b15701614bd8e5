"""Every example of the pages on asking for text is run as it stands there."""

import gc
import json
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path

import httpx
import pytest

from tests.support.live_stack import API_KEY, LiveStack

pytestmark = [pytest.mark.real_model, pytest.mark.e2e, pytest.mark.timeout(180)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["jobs.md", "openai.md", "streaming.md", "batches.md"]


def examples(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def commands(page: str) -> list[str]:
    """Return a page's curl commands, each on one line."""
    text = "".join(examples(page, "bash")).replace("\\\n", "")
    return [line for line in text.splitlines() if line.startswith("curl")]


PYTHON = [
    pytest.param(code, id=f"{page}-{number}")
    for page in PAGES
    for number, code in enumerate(examples(page, "python"))
]
CURL = [pytest.param(commands(page), id=page) for page in PAGES if commands(page)]


@pytest.fixture
def surroundings(real, monkeypatch):
    """Set what the pages tell to set."""
    for name, value in {
        "URL": real.api.url,
        "KEY": API_KEY,
        "OPENAI_BASE_URL": f"{real.api.url}/v1",
        "OPENAI_API_KEY": API_KEY,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("surroundings")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("source", PYTHON)
def test_the_python_of_a_page_runs_and_prints_an_answer(source, capsys):
    names = {"__name__": "example"}

    exec(source, names)  # noqa: S102  the page's example is what is tested
    names.clear()
    gc.collect()  # now, while the warning that an example left a connection open is ignored

    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("lines", CURL)
def test_every_command_of_a_page_is_taken(real, lines):
    job_id = ""
    for line in lines:
        answer = send(real, line.replace("$JOB", job_id))
        assert answer.status_code in (200, 202, 204), answer.text
        job_id = id_in(answer) or job_id


def id_in(answer: httpx.Response) -> str:
    is_json = answer.headers.get("content-type") == "application/json"
    return str(json.loads(answer.text).get("id", "")) if is_json else ""


def send(real: LiveStack, command: str) -> httpx.Response:
    """Send what a curl command would."""
    parser = ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-H", dest="headers", action="append")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-N", action="store_true")
    parser.add_argument("--json")
    _, *words = shlex.split(command.replace("$URL", real.api.url).replace("$KEY", API_KEY))
    given = parser.parse_args(words)
    headers = dict(header.split(": ", 1) for header in given.headers)
    if given.json:
        headers["Content-Type"] = "application/json"
    method = given.method or ("POST" if given.json else "GET")
    return httpx.request(method, given.url, headers=headers, content=given.json, timeout=60)
