#!/usr/bin/env bash
# Print the lock that suits this machine, cpu or cuda: the CPU build of torch where pip sees it for the given Python,
# else the index's default build. PROMPTMILL_LOCK overrules. Downloads nothing. Usage: choose.sh PYTHON
set -euo pipefail
locks=$(dirname "$0")

if [ -n "${PROMPTMILL_LOCK:-}" ]; then
    echo "$PROMPTMILL_LOCK"
    exit
fi
torch=$(mktemp)
trap 'rm -f "$torch"' EXIT
grep -A1 '^torch==.*+cpu' "$locks/cpu.lock" > "$torch"
if "$1" -m pip install --dry-run --quiet --ignore-installed --no-deps --require-hashes --requirement "$torch" \
    > /dev/null 2>&1; then
    echo cpu
else
    echo cuda
fi
