#!/usr/bin/env bash
# Set up if need be, fetch the embedded data, and reproduce a paper's table beside the published one.
#
#   bash scripts/reproduce.sh PAPER [TABLE] [options of scripts/reproduce.py]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n '2,4s/^# \{0,1\}//p' scripts/reproduce.sh
    echo "papers:"
    for folder in projects/*/; do
        if [ -f "$folder/__init__.py" ]; then echo "  $(basename "$folder")"; fi
    done
}

paper="${1:-}"
case "$paper" in
-h | --help) usage && exit 0 ;;
"" | -*) usage >&2 && exit 2 ;;
esac
if [ ! -f "projects/$paper/__init__.py" ]; then
    echo "error: no paper '$paper' here" >&2
    usage >&2
    exit 2
fi

case " $* " in
*" --help "* | *" -h "*)
    if [ -x .venv/bin/python ]; then exec .venv/bin/python scripts/reproduce.py "$@"; fi
    usage && exit 0 # no need to install anything for it
    ;;
esac

extras=""
name="$(printf '%s' "$paper" | tr _ -)"
if grep -q "^$name = \[" pyproject.toml; then extras="$name"; fi
case " $* " in
*slurm*) extras="$extras slurm" ;;
esac
# shellcheck disable=SC2086  # one word an extra
bash scripts/setup.sh $extras
exec .venv/bin/python scripts/reproduce.py "$@"
