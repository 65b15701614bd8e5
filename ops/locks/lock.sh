#!/usr/bin/env bash
# Remake both locks from pyproject.toml: `make lock`. Needs uv and pip in the environment and a package index.
# cpu.lock holds torch's CPU build, which pip finds on machines that offer it beside the index; its hash is added
# here because the index does not list that file. cuda.lock holds the index's default build and its nvidia packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
options=(--all-extras --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet)
uv pip compile pyproject.toml "${options[@]}" --upgrade -o ops/locks/cuda.lock
uv pip compile pyproject.toml "${options[@]}" --upgrade --config-file ops/locks/cpu.toml -o ops/locks/cpu.lock
wheel_dir=$(mktemp -d)
trap 'rm -rf "$wheel_dir"' EXIT
pip download --quiet --no-deps --dest "$wheel_dir" torch==2.13.0
wheel=$(ls "$wheel_dir"/torch-2.13.0+cpu-*.whl)
hash=$(python3 -c 'import hashlib, sys; print(hashlib.file_digest(open(sys.argv[1], "rb"), "sha256").hexdigest())' "$wheel")
sed -i "s|^torch==2.13.0 \\\\$|torch==2.13.0 \\\\\n    --hash=sha256:$hash \\\\|" ops/locks/cpu.lock
grep -q "$hash" ops/locks/cpu.lock || { echo "the CPU build's hash did not get into cpu.lock" >&2; exit 1; }
