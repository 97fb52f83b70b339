from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from shared.data.catalogue import embedded_sets, real_sets
from shared.errors import UserError

SCRIPT = Path(__file__).parents[2] / "scripts" / "download_data.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("download_data", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAPERWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nonexistent")  # no client of a registry
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "cache"


def test_the_list_has_everything(script, tmp_path, capsys) -> None:
    assert script.main(["--list", "--json", str(tmp_path / "list.json")]) == 0
    rows = {row["name"]: row for row in json.loads((tmp_path / "list.json").read_text())}
    assert rows.keys() == embedded_sets().keys() | real_sets().keys()
    assert rows["minilm"]["present"] is False and rows["minilm"]["bytes"] == 83_506_384
    assert rows["metamath"]["present"] is None
    shown = capsys.readouterr().out
    assert "efficientnet-lite0" in shown and "movielens-100k" in shown and "learnit-shapenet" in shown
    assert "83.5 MB" in shown and "yours to supply" in shown


def test_the_list_shows_which_real_sets_are_complete(script, tmp_path, capsys) -> None:
    for name in ("train", "test", "meta"):
        (tmp_path / "data" / "cifar-100-python" / name).mkdir(parents=True)
    file = tmp_path / "list.json"
    arguments = ["cifar-100", "cifar-10", "--list", "--root", str(tmp_path / "data"), "--json", str(file)]
    assert script.main(arguments) == 0
    assert {row["name"]: row["present"] for row in json.loads(file.read_text())} == {
        "cifar-100": True,
        "cifar-10": False,
    }
    assert "layout: cifar-100-python/train" in capsys.readouterr().out.replace("\n", " ")


def test_real_sets_are_checked_below_the_root(script, tmp_path, capsys) -> None:
    for name in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / name).mkdir(parents=True)
    assert script.main(["cifar-100", "--root", str(tmp_path)]) == 0
    assert "layout complete" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"3 of 3 expected paths are missing.*cifar-10-python\.tar\.gz"):
        script.main(["cifar-100", "cifar-10", "--root", str(tmp_path)])
    with pytest.raises(UserError, match="cannot be fetched for you"):
        script.main(["cifar-100"])


def test_the_others_are_tried_when_one_fails(script, empty_cache) -> None:
    with pytest.raises(UserError) as caught:
        script.main(["stamps", "furniture"])
    text = str(caught.value)
    assert text.count("apt-get was not found") == 2 and "could not fetch furniture" in text
    assert not (empty_cache / "data" / "stamps").exists()


def test_verify(script, empty_cache, capsys) -> None:
    assert script.main(["--verify"]) == 0
    assert "nothing to verify" in capsys.readouterr().out
    assert script.main(["--verify", "minilm"]) == 1
    assert "not in the cache" in capsys.readouterr().out
    (empty_cache / "data" / "minilm").mkdir(parents=True)
    assert script.main(["--verify"]) == 1
    assert "no readable manifest.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["--from", "x"], ["--json", "x", "minilm"], ["minilm", "--nonsense"]]
)
def test_bad_usage(script, arguments) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(arguments)
    assert caught.value.code == 2


def test_an_unknown_name_as_the_user_sees_it() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "movie-sentence"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "Did you mean 'movie-sentences'?" in done.stderr and "Traceback" not in done.stderr


def test_help(script, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        script.main(["--help"])
    assert caught.value.code == 0
    assert "--verify" in capsys.readouterr().out
