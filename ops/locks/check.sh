#!/usr/bin/env bash
# Resolve the lock that is not installed here, without installing it: `make lock-check`. Usage: check.sh PYTHON
# What is found wrong: a release that left the index, a hash that no file has, a dependency that is not pinned.
set -euo pipefail
locks=$(dirname "$0")

resolve() {
    "$1" -m pip install --dry-run --quiet --ignore-installed --require-hashes --requirement "$locks/$2.lock" > /dev/null
    echo "$2.lock resolves"
}

if [ "$("$locks/choose.sh" "$1")" = cpu ]; then
    resolve "$1" cuda
elif [ -n "${PROMPTMILL_LOCK:-}" ]; then
    resolve "$1" cpu
else
    echo "cpu.lock can't be resolved here: pip sees no CPU build of torch for this Python"
fi
