#!/usr/bin/env bash
# Set up if need be, fetch the embedded data that tests read, then run the tests; arguments go to pytest:
#
#   bash scripts/test.sh [-m slow] [-k lora] [tests/shared] ...
#
# Without arguments the whole default suite runs in TEST_WORKERS processes (2) of one thread each.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh all

sets="$(cat tests/embedded.txt tests/projects/*/embedded.txt 2>/dev/null | sort -u | tr '\n' ' ')" || true
if [ -n "${sets% }" ]; then
    # shellcheck disable=SC2086  # one word a set
    if ! .venv/bin/python scripts/download_data.py $sets >&2; then
        if [ -n "${CI:-}" ]; then exit 1; fi
        echo "[test] could not fetch all of: $sets; tests that need them are skipped" >&2
    fi
fi
if [ $# = 0 ]; then
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    set -- -n "${TEST_WORKERS:-2}" --dist loadfile
fi
exec .venv/bin/python -m pytest "$@"
