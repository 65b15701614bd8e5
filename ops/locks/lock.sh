#!/usr/bin/env bash
# Remake the locks from pyproject.toml: `make lock`. Needs uv and pip in the environment and a package index.
#
# cuda.lock holds the index's default build of torch and, on Linux, the nvidia packages it asks for. cpu.lock holds
# torch's CPU build, which pip sees only where it is offered beside the index; it is pinned as what it is, "+cpu" with
# the hash of the file seen here, because pip prefers a file whose hash it knows and would take the other build.
# light.lock is the part of cuda.lock that the API, CPU workers, beat and Flower need: no torch.
# triton.lock is the one package of cuda.lock that `make test` installs beside the CPU lock, for Triton's interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."

compile() {
    uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --quiet --upgrade "$@"
}
compile --all-extras -o ops/locks/cuda.lock
compile --all-extras --config-file ops/locks/cpu.toml -o ops/locks/cpu.lock
compile --extra local --constraint ops/locks/cuda.lock -o ops/locks/light.lock
sed -n '/^triton==/,/[^\\]$/p' ops/locks/cuda.lock > ops/locks/triton.lock

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
torch=$(sed -n 's/^torch==\([^ +]*\).*/\1/p' ops/locks/cuda.lock)
python3 -m pip download --quiet --no-deps --dest "$wheels" "torch==$torch+cpu"
python3 - "$torch" "$wheels" <<'PYTHON'
import hashlib
import re
import sys
from pathlib import Path

torch, wheels = sys.argv[1:]
(wheel,) = Path(wheels).glob("*.whl")
digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
lock = Path("ops/locks/cpu.lock")
pinned = re.compile(rf"^torch=={re.escape(torch)} \\\n(?:    --hash=\S+(?: \\)?\n)+", re.MULTILINE)
text, replaced = pinned.subn(f"torch=={torch}+cpu \\\\\n    --hash=sha256:{digest}\n", lock.read_text())
if replaced != 1:
    sys.exit("cpu.lock has no single torch to pin")
lock.write_text(text)
PYTHON
