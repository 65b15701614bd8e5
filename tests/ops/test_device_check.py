"""The check of a machine with a GPU, as far as a machine without one can run it."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from ops.bench.device_answers import Expected
from ops.bench.device_section import Section
from tests.support.tiny_model import write_tiny_model

EXPECTED = Expected(prompt_ids=[1], output_ids=[5, 6, 7], margins=[0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("answer", "margin"),
    [([5, 6, 7], None), ([5, 9, 7], 0.2), ([5, 6], 0.3), ([5, 6, 7, 8], 0.4)],
    ids=["equal", "other-token", "shorter", "longer"],
)
def test_answers_part_where_their_first_difference_is(answer, margin):
    assert EXPECTED.parting_margin(answer) == margin


def test_a_section_names_what_is_wrong():
    section = Section("Kernels", ["case", "error"], [["norm", "nan"]], failures=["norm is off"])

    assert "| norm | nan |" in section.text()
    assert "FAILED: norm is off" in section.text()


def test_the_check_writes_what_it_found(tmp_path):
    command = [sys.executable, "-m", "ops.bench.device_check", "--device", "cpu"]

    subprocess.run([*command, "--only", "environment", "--out", str(tmp_path)], check=True)

    found = json.loads((tmp_path / "device-check.json").read_text())["Environment"]
    assert found["numbers"]["bytes_per_s"] > 0
    assert asdict(Section(**found))["failures"] == []
    assert "TFLOP/s" in (tmp_path / "device-check.md").read_text()


def test_a_part_that_fails_is_told_and_ends_the_check_with_one(tmp_path):
    folder = write_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    command = [sys.executable, "-m", "ops.bench.device_check", "--device", "cpu"]
    what = ["--only", "speed", "--model", str(folder), "--out", str(tmp_path)]

    done = subprocess.run([*command, *what], capture_output=True, check=False)

    assert done.returncode == 1
    (failure,) = json.loads((tmp_path / "device-check.json").read_text())["speed"]["failures"]
    assert "Error" in failure
