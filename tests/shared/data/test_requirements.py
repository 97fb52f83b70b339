from __future__ import annotations

from pathlib import Path

import pytest

from shared.data.catalogue import (
    RealSet,
    Requirement,
    check_layout,
    huggingface_requirement,
    missing,
    real_sets,
    requirement,
)
from shared.errors import UserError
from tests.shared.data.conftest import described

LAYOUT = RealSet(
    name="shapes",
    title="Shapes",
    kind="data",
    papers=("toy",),
    expect=("shapes/train/*/*.png", "shapes/labels.csv", "shapes/test|Shapes/test"),
    licence="none",
    get="draw them.",
)


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def as_path(pattern: str) -> str:
    """A path that the first alternative of a layout pattern matches."""
    return pattern.split("|")[0].replace("*", "07")


def test_layout_names_what_is_absent(tmp_path: Path) -> None:
    assert "expected the folder" in check_layout(LAYOUT, tmp_path / "nowhere")[0]
    touch(tmp_path, "shapes/train/red/1.png")
    (problem,) = check_layout(LAYOUT, tmp_path)
    assert "2 of 3 expected paths are missing" in problem
    assert "shapes/labels.csv, shapes/test or Shapes/test" in problem
    touch(tmp_path, "shapes/labels.csv", "Shapes/test/1.png")
    assert check_layout(LAYOUT, tmp_path) == []


@pytest.mark.parametrize("name", sorted(real_sets()))
def test_every_real_layout_can_be_met_and_noticed(name: str, tmp_path: Path) -> None:
    item = real_sets()[name]
    (tmp_path / "data").mkdir()
    need = requirement(name, tmp_path / "data")
    assert f"{len(item.expect)} of {len(item.expect)} expected paths are missing" in missing([need])[0]
    assert item.get in missing([need])[0]
    for pattern in item.expect[:-1]:
        touch(tmp_path / "data", as_path(pattern))
    assert "1 of" in missing([need])[0]
    touch(tmp_path / "data", as_path(item.expect[-1]))
    assert missing([need]) == []


def test_all_problems_at_once(cache, catalogue, package, tmp_path, monkeypatch) -> None:
    catalogue(described(package))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    needs = [requirement("toyset"), requirement("metamath"), huggingface_requirement("some/model")]
    assert [need.kind for need in needs] == ["embedded", "data", "weights"]
    first, second, third = missing(needs)
    assert "python scripts/download_data.py toyset" in first and str(cache) in first
    assert "data.root is not set" in second and "pissa-dataset/metamath" in second and "MIT" in second
    assert "hf download some/model" in third


def test_a_hugging_face_model_is_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    touch(tmp_path, "hub/models--some--model/snapshots/abc/config.json", "local/config.json")
    for model, folder in (
        ("some/model", "hub/models--some--model/snapshots/abc"),
        (str(tmp_path / "local"), "local"),
    ):
        need = huggingface_requirement(model)
        assert need.path == tmp_path / folder
        assert missing([need]) == []


def test_a_requirement_of_ones_own(tmp_path: Path) -> None:
    need = Requirement("mine", "weights", tmp_path / "mine.pt", "a checkpoint", "train it")
    assert "nothing at" in missing([need])[0] and "train it" in missing([need])[0]
    touch(tmp_path, "mine.pt")
    assert missing([need]) == []


def test_an_embedded_set_is_met_once_it_is_fetched(cache, catalogue, client, package) -> None:
    from shared.data.catalogue import fetch

    catalogue(described(package))
    client("npm", f"cp {package} .")
    fetch("toyset")
    assert missing([requirement("toyset")]) == []


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'metamath'"):
        requirement("metamaths")
