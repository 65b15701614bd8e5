"""`promptmill demo` as a process: what it shows, and that nothing of it is left however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.registry import Provenance, write_manifest
from tests.support.tiny_model import write_tiny_model
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

_REPOSITORY = Path(__file__).resolve().parents[2]
_STOP_LIMIT_S = 60.0


class Demo:
    """One run of the demo, with a folder of its own for what is temporary."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._log = folder / "demo.log"
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        environment = {
            "PATH": os.defpath,
            "HOME": str(folder),
            "TMPDIR": str(self._temporary),
            "PROMPTMILL_MODELS": f'["{model}"]',
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "ops.cli", "demo"],
                cwd=_REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.family: set[psutil.Process] = set()

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_it_says(self, text: str) -> None:
        wait_until(lambda: text in self.said or self._process.poll() is not None, 60.0)
        assert text in self.said, self.said
        self.family.update(psutil.Process(self._process.pid).children(recursive=True))

    def interrupt(self) -> None:
        """Do what Ctrl-C in a terminal does."""
        os.killpg(self._process.pid, signal.SIGINT)

    def wait(self, limit_s: float = _STOP_LIMIT_S) -> int:
        return self._process.wait(limit_s)

    def left_behind(self) -> list[object]:
        """Return processes and files that are still there."""
        alive = [process for process in self.family if process.is_running()]
        return [*alive, *self._temporary.iterdir()]

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Path], Demo]]:
    """Return a way to start a demo on a model; it is gone after the test."""
    demos: list[Demo] = []

    def make(model: Path) -> Demo:
        demos.append(Demo(tmp_path, model))
        return demos[-1]

    yield make
    for demo in demos:
        demo.kill()


@pytest.mark.real_model
def test_ctrl_c_in_the_middle_stops_everything(start, model_folder):
    demo = start(model_folder)
    demo.wait_until_it_says("jobs accepted")

    demo.interrupt()

    assert demo.wait() == 130, demo.said
    assert "interrupted: stopping" in demo.said
    assert len(demo.family) >= 6
    assert demo.left_behind() == []


def test_a_part_that_does_not_live_fails_the_demo_and_shows_its_log(start, tmp_path):
    model = tmp_path / "broken"
    model.mkdir()
    (model / "manifest.json").write_text("{}")
    demo = start(model)
    demo.wait_until_it_says("1/4")

    status = demo.wait()

    assert status == 1, demo.said
    assert "The demo failed: api does not live" in demo.said
    assert "broken/manifest.json: not a manifest" in demo.said
    assert demo.left_behind() == []


@pytest.mark.soak
def test_a_worker_that_cannot_load_its_model_fails_the_demo(start, tmp_path):
    model = write_tiny_model(tmp_path / "tiny", max_position_embeddings=4096)
    write_manifest(model, Provenance("tiny"))
    (model / "model.safetensors").write_bytes(b"changed")
    demo = start(model)
    demo.wait_until_it_says("jobs accepted")

    status = demo.wait()

    assert status == 1, demo.said
    assert "The demo failed: engine1 does not live" in demo.said
    assert "model.safetensors: changed" in demo.said
    assert demo.left_behind() == []


@pytest.mark.real_model
@pytest.mark.soak
def test_every_promise_is_shown(start, model_folder):
    demo = start(model_folder)

    status = demo.wait(limit_s=170.0)

    assert status == 0, demo.said
    promises = (
        "12 jobs accepted (202)",
        "the engine worker is gone, mid-sentence",
        "engine1 is started again by its supervisor",
        "all 12 completed",
        "none was lost, none answered twice",
        "deadline 0.4 s  expired",
        "signature verified by standardwebhooks",
        "bad-line   refused",
        "promptmill.generate SUCCESS",
        "Every promise was kept",
    )
    assert [promise for promise in promises if promise not in demo.said] == []
    assert demo.left_behind() == []
