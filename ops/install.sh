#!/usr/bin/env bash
# Make .venv in the repository and install into it what ops/locks pins: part of `make setup`.
# Needs Python 3.11 or later with venv, and a package index. PYTHON names another interpreter than python3.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

# Measured on 2026-11-29 for Linux x86-64 and Python 3.11: what pip downloads, and the installed .venv.
size_of_cpu="0.3 GB to download, 1.4 GB on disk"
size_of_cuda="2.9 GB to download, 5.2 GB on disk"

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
    echo "promptmill needs Python 3.11 or later, and $python is not ($("$python" --version 2>&1 | tail -1))." >&2
    echo "Name another one: make PYTHON=python3.12" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
    echo "$python has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2
    exit 1
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
lock=$(ops/locks/choose.sh .venv/bin/python)
size=size_of_$lock
echo "Installing ops/locks/$lock.lock into .venv: ${!size}, less what pip has cached."
.venv/bin/python -m pip install --disable-pip-version-check --require-hashes --requirement "ops/locks/$lock.lock"
