"""The shell scripts, with a stand-in for Python that notes what it is asked to do and installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent.parent
STAND_IN = """#!/usr/bin/env bash
# $LOG collects the calls of pip; $FAIL makes them fail; everything else goes to the real Python
case "$1 $2" in
"-m venv")
    shift 2; [ "$1" = --clear ] && shift
    mkdir -p "$1/bin" && rm -f "$1/bin/python" && cp "$SELF" "$1/bin/python" ;;
"-m pip")
    echo "start $*" >>"$LOG"; sleep "${PAUSE:-0}"; echo "end" >>"$LOG"
    if [ -n "${FAIL:-}" ]; then echo "no route to the index"; exit 1; fi
    echo "Installing collected packages: a, b, c" ;;
"-m pytest" | scripts/*) echo "ran $*" ;;
"-c import sys, pip;"*) [ ! -e "$(dirname "$0")/../broken" ] ;;
*) exec "$REAL" "$@" ;;
esac
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "a repository"  # a space in the path, as people have
    (root / "projects" / "some_paper").mkdir(parents=True)
    (root / "projects" / "some_paper" / "__init__.py").touch()
    (root / "scripts").mkdir()
    for name in ("setup.sh", "reproduce.sh", "test.sh"):
        shutil.copy(REPO / "scripts" / name, root / "scripts")
    (root / "constraints.txt").write_text("a==1\n")
    (root / "pyproject.toml").write_text(
        "[project.optional-dependencies]\n"
        + "".join(f"{name} = [\n]\n" for name in ("some-paper", "slurm", "test", "all"))
    )
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return root


def start(root: Path, *words: str, **more: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {
        "PYTHON": str(root.parent / "python"),
        "SELF": str(root.parent / "python"),
        "REAL": sys.executable,
        "LOG": str(root.parent / "log"),
        **more,
    }
    return subprocess.Popen(
        ["bash", *words],
        cwd=root,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def run(root: Path, *words: str, **more: str) -> tuple[int, str, str]:
    process = start(root, *words, **more)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def installs(root: Path) -> list[str]:
    """The extras of each installation, in order."""
    log = root.parent / "log"
    calls = log.read_text().splitlines() if log.exists() else []
    return [re.search(r"-e \.(\[.*\])?$", call)[1] or "" for call in calls if call.startswith("start")]


def test_set_up_once(root: Path) -> None:
    code, _, err = run(root, "scripts/setup.sh", "some_paper")
    assert code == 0, err
    assert "making .venv" in err and "unpacking 3 packages" in err and "ready" in err
    started = time.monotonic()
    assert run(root, "scripts/setup.sh", "some_paper") == (0, "", "")
    assert run(root, "scripts/setup.sh") == (0, "", "")
    assert time.monotonic() - started < 3
    assert installs(root) == ["[some-paper]"]


def test_extras_add_up_and_all_covers_every_one(root: Path) -> None:
    run(root, "scripts/setup.sh", "slurm")
    run(root, "scripts/setup.sh", "some_paper")
    run(root, "scripts/setup.sh", "slurm")
    run(root, "scripts/setup.sh", "all")
    run(root, "scripts/setup.sh", "test", "some_paper")
    assert installs(root) == ["[slurm]", "[slurm,some-paper]", "[all]"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_set_is_installed_again(root: Path, name: str) -> None:
    run(root, "scripts/setup.sh")
    with (root / name).open("a") as file:
        file.write("# changed\n")
    run(root, "scripts/setup.sh")
    assert len(installs(root)) == 2


def test_a_failed_or_killed_installation_is_repeated(root: Path) -> None:
    code, _, err = run(root, "scripts/setup.sh", FAIL="1")
    assert code == 1
    assert "no route to the index" in err and "run the same command again" in err
    process = start(root, "scripts/setup.sh", PAUSE="30")
    wait_for(lambda: len(installs(root)) == 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert run(root, "scripts/setup.sh", PAUSE="0")[0] == 0
    assert len(installs(root)) == 3


def test_two_at_once_install_once(root: Path) -> None:
    first = start(root, "scripts/setup.sh", PAUSE="2")
    wait_for(lambda: len(installs(root)) == 1)
    second = start(root, "scripts/setup.sh", PAUSE="2")
    err = second.communicate(timeout=60)[1]
    first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "another set-up is under way" in err
    assert len(installs(root)) == 1


def test_a_broken_environment_is_repaired(root: Path) -> None:
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to("/nonexistent/python3")
    code, _, err = run(root, "scripts/setup.sh")
    assert code == 0, err
    assert "repairing the unusable .venv" in err


def test_mistakes_are_explained(root: Path) -> None:
    code, _, err = run(root, "scripts/setup.sh", "nonsense")
    assert (code, "found 'nonsense'" in err) == (2, True)
    code, _, err = run(root, "scripts/setup.sh", PYTHON="/nonexistent/python")
    assert (code, "expected Python 3.11 or newer in PYTHON=/nonexistent/python" in err) == (2, True)
    assert installs(root) == []


def test_reproduce_needs_a_paper(root: Path) -> None:
    for words, message in (
        ((), "some_paper"),
        (("--profile", "paper"), "some_paper"),
        (("other",), "no paper 'other'"),
    ):
        code, _, err = run(root, "scripts/reproduce.sh", *words)
        assert code == 2
        assert message in err and "papers:" in err
    code, out, _ = run(root, "scripts/reproduce.sh", "some_paper", "--help")
    assert code == 0 and "reproduce.sh PAPER" in out and not installs(root)
    code, out, _ = run(root, "scripts/reproduce.sh", "--help")
    assert code == 0 and "some_paper" in out
    assert installs(root) == []


def test_reproduce_and_test_install_what_they_need_and_pass_on_the_arguments(root: Path) -> None:
    code, out, err = run(root, "scripts/reproduce.sh", "some_paper", "table", "--launcher", "slurm", "a=b c")
    assert code == 0, err
    assert out == "ran scripts/reproduce.py some_paper table --launcher slurm a=b c\n"
    code, out, err = run(root, "scripts/test.sh", "-k", "one")
    assert code == 0, err
    assert out == "ran -m pytest -k one\n"
    assert installs(root) == ["[slurm,some-paper]", "[all]"]


def test_test_fetches_the_data_that_tests_read(root: Path) -> None:
    folder = root / "tests" / "projects" / "some_paper"
    folder.mkdir(parents=True)
    (folder / "embedded.txt").write_text("set-b\nset-a\n")
    code, out, err = run(root, "scripts/test.sh")
    assert (code, out) == (0, "ran -m pytest -n 2 --dist loadfile\n")  # the whole suite, in parallel
    assert "ran scripts/download_data.py set-a set-b" in err


def wait_for(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it did not happen within 30 s"
        time.sleep(0.05)
