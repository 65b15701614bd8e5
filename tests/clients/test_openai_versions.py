"""The same script on the newest package and, in a soak, on the oldest that is supported.

An older package than 1.93 knows no `responses.cancel` and no `starting_after`.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.fake_engine import as_prompt, byte_tokenizer, expected_text, expected_vector
from tests.support.jobs import MODEL
from tests.support.live_stack import API_KEY
from tests.support.load import amount

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "client_calls.py"
NEWEST, OLDEST = "newest", "1.93.0"
ids_of = byte_tokenizer().encode
ANSWER = expected_text(as_prompt({"role": "user", "content": "hello"}), 12)


@pytest.fixture
def python(request, tmp_path):
    """Return an interpreter that has a version of the package."""
    if request.param == NEWEST:
        return sys.executable
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", f"openai=={request.param}"], check=True)
    return python


@pytest.mark.timeout(amount(quick=60, soak=300))
@pytest.mark.parametrize(
    "python", [NEWEST] if amount(quick=1, soak=2) == 1 else [NEWEST, OLDEST], indirect=True
)
def test_every_call_comes_to_what_it_should(live, python):
    command = [python, str(SCRIPT), live.api.url, API_KEY, MODEL]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == {
        "models": [MODEL],
        "model": MODEL,
        "chat": ANSWER,
        "chat stream": ANSWER,
        "completion": expected_text("hello", 12),
        "embeddings": [expected_vector(ids_of(text)).tolist() for text in ("hello", "you")],
        "response": ANSWER,
        "response logprobs": [[[letter, 2] for letter in ANSWER], [*ANSWER], [*ANSWER]],
        "response stream": ANSWER,
        "background": [ANSWER, {"a": "b"}, "incomplete"],
        "resumed": ANSWER,
        "cancelled": "cancelled",
        "bad key": ["AuthenticationError", "invalid_api_key", None],
        "bad parameter": ["BadRequestError", "invalid_request", "temperature"],
        "bad model": ["NotFoundError", "model_not_found", "model"],
        "conflict": ["ConflictError", "idempotency_conflict", None],
    }
