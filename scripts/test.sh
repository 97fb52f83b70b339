#!/usr/bin/env bash
# Set up if need be, then run the tests; arguments go to pytest, e.g. bash scripts/test.sh -k lora -m slow
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh all
exec .venv/bin/python -m pytest "$@"
