import os
import subprocess
import sys


def tethered(parent: int, *command: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "ops.tether", str(parent), *command], check=False
    ).returncode


def test_the_command_takes_the_place_of_the_tether():
    assert tethered(os.getpid(), "sh", "-c", "exit 7") == 7


def test_a_command_whose_parent_is_gone_already_does_not_run(tmp_path):
    another = os.getppid()

    status = tethered(another, "touch", str(tmp_path / "ran"))

    assert status == 1
    assert list(tmp_path.iterdir()) == []
