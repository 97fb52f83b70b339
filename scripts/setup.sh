#!/usr/bin/env bash
# Make .venv and install this repository with the named extras, once; later calls return at once.
#
#   bash scripts/setup.sh [EXTRA ...]        e.g. nonzero_lora, slurm, test, all
#
# PYTHON names the interpreter to make .venv with (3.11 or newer). Works with bash 3.2 (macOS).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
venv="$root/.venv"
python="$venv/bin/python"
stamp="$venv/.paperworks-setup" # line 1: what was installed from; line 2: the extras installed
log="$venv/setup.log"

say() { printf '[setup] %s\n' "$*" >&2; }

if [ "${1:-}" = "-h" ] || [ "${1:-}" = "--help" ]; then
    sed -n '2,6s/^# \{0,1\}//p' scripts/setup.sh
    exit 0
fi

wanted="$(printf '%s\n' "$@" | tr ', _' '\n\n-' | sed '/^$/d' | sort -u)"
for name in $wanted; do
    if ! grep -q "^$name = \[" pyproject.toml; then
        say "error: expected an extra named in pyproject.toml [project.optional-dependencies], found '$name'"
        exit 2
    fi
done
source_of_set="$(cat pyproject.toml constraints.txt | cksum) $root"

installed() { # one a line: "core" and the extras installed from exactly these files
    if [ -x "$python" ] && [ -f "$stamp" ] && [ "$(sed -n 1p "$stamp")" = "$source_of_set" ]; then
        echo core
        sed -n 2p "$stamp" | tr ' ' '\n'
    fi
}

satisfied() {
    local have name
    have=" $(installed | tr '\n' ' ') "
    case "$have" in
    *" all "*) return 0 ;;
    esac
    for name in core $wanted; do
        case "$have" in
        *" $name "*) ;;
        *) return 1 ;;
        esac
    done
}

if satisfied; then exit 0; fi

refusals=""
usable() { # can this interpreter make .venv? If not, say why in $refusals
    if ! command -v "$1" >/dev/null 2>&1; then
        return 1
    elif ! "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        refusals="$refusals; $1 is older than 3.11 or does not run"
    elif ! "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        refusals="$refusals; $1 cannot make environments (on Debian or Ubuntu: apt install python3-venv)"
    else
        return 0
    fi
    return 1
}

base=""
find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        if usable "$PYTHON"; then base="$PYTHON"; fi
    else
        for candidate in python3.11 python3.12 python3.13 python3 python; do # 3.11 first: the set was tested there
            if usable "$candidate"; then
                base="$candidate"
                break
            fi
        done
    fi
    if [ -z "$base" ]; then
        say "error: expected Python 3.11 or newer${PYTHON:+ in PYTHON=$PYTHON}, found none that can be used$refusals."
        say "Install one, or name one: PYTHON=/path/to/python3.11 bash scripts/setup.sh"
        exit 2
    fi
}

healthy() { # .venv runs, is an environment of its own, is new enough and has pip
    "$python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11) or sys.prefix == sys.base_prefix)' \
        >/dev/null 2>&1
}

if healthy; then base="$python"; else find_python; fi

# One set-up at a time. The kernel holds the lock on descriptor 9 until the last process that has it ends,
# so a killed set-up leaves no stale lock. (Python asks for it because macOS has no flock command.)
exec 9>"$root/.venv.lock"
take='import fcntl, sys; fcntl.flock(9, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[1:] else 0))'
if ! "$base" -c "$take" now 2>/dev/null; then
    say "another set-up is under way here; waiting for it"
    "$base" -c "$take"
fi
if satisfied; then exit 0; fi

if ! healthy; then
    if [ -e "$venv" ]; then say "repairing the unusable .venv"; fi
    say "making .venv with $("$base" --version 2>&1) ($(command -v "$base"))"
    if ! "$base" -m venv "$venv" >/dev/null 2>&1 || ! healthy; then
        "$base" -m venv --clear "$venv"
    fi
fi

extras="$({ installed && printf '%s\n' "$wanted"; } | sed '/^core$/d; /^$/d' | LC_ALL=C sort -u | paste -s -d , -)"
case ",$extras," in *,all,*) extras=all ;; esac
rm -f "$stamp" # from here until the end the environment counts as incomplete
say "installing the pinned packages${extras:+ for: $extras} (several GB the first time: some minutes)"

show_progress() { # a line for each big download, one for the installation
    local line
    while IFS= read -r line; do
        case "$line" in
        *"Downloading "*" ("*[0-9][0-9].[0-9]" MB)"*)
            line="${line##*Downloading }"
            say "  downloading ${line##*/}"
            ;;
        *"Installing collected packages:"*)
            say "  unpacking $(printf '%s' "${line#*:}" | wc -w | tr -d ' ') packages (a minute or two)"
            ;;
        esac
    done
}

# --no-input: a question would wait for ever behind the pipe. PIP_USER would send packages past .venv.
status=0
PIP_USER=0 "$python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
    -c constraints.txt -e ".${extras:+[$extras]}" 2>&1 | tee "$log" | show_progress || status=$?
if [ "$status" -ne 0 ]; then
    tail -n 15 "$log" >&2
    say "error: pip could not install the set (its last lines are above, all of them in .venv/setup.log)."
    say "Mend the cause (network, disk space) and run the same command again: it goes on from here."
    exit 1
fi

printf '%s\n%s\n' "$source_of_set" "$(printf '%s' "$extras" | tr ',' ' ')" >"$stamp.new"
mv "$stamp.new" "$stamp"
say "ready"
