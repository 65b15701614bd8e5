"""The kernels for a GPU compile for one, here too: Triton brings the assembler along."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
KERNELS = REPOSITORY / "engine" / "kernels" / "triton"
# What is launched; all else that is compiled is called by one of these.
LAUNCHED = re.compile(r"^ +(_\w+)\[", re.MULTILINE)


@pytest.mark.timeout(240)
def test_all_kernels_compile_for_an_h200_in_half_precision(tmp_path):
    launched = {
        name for path in KERNELS.glob("*.py") for name in LAUNCHED.findall(path.read_text())
    }
    compiler = [sys.executable, "-m", "tests.support.kernel_compiler"]

    done = subprocess.run(
        ["env", "-u", "TRITON_INTERPRET", f"TRITON_CACHE_DIR={tmp_path}", *compiler],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )

    found = json.loads(done.stdout)
    assert found["failed"] == {}
    assert set(found["compiled"]) >= launched
    assert len(launched) >= 12
