"""A whole installation for the unmodified openai package."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.live_stack import LiveStack


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStack]:
    """Run an API and a fake engine's worker for the whole session."""
    stack = LiveStack(tmp_path_factory.mktemp("live"), step_ms=2.0)
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[LiveStack]:
    """Run an API and all workers on the demonstration model for the whole session."""
    stack = LiveStack(tmp_path_factory.mktemp("real"), model=model_folder)
    stack.start()
    stack.start_cpu_worker()
    yield stack
    stack.stop()


@pytest.fixture
def ai(live: LiveStack) -> Iterator[openai.OpenAI]:
    """Return a client as a stranger would make it."""
    with live.client(timeout=20) as client:
        yield client
