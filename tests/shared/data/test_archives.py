from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from shared.data.archives import extract, members
from shared.errors import UserError
from tests.shared.data.conftest import FILES, gz, make_deb, make_tar, make_zip

INSIDE = {f"package/{name}": data for name, data in FILES.items()} | {"package/other.js": b"x"}
WANTED = {"prefix": "package/", "keep": ["*.bin", "sub/*"], "limit": 10**6}


def content(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("form", ["zip", "tar.gz", "tar.xz", "deb", "folder"])
def test_extracts_exactly_the_kept_files(tmp_path: Path, form: str) -> None:
    archive = tmp_path / f"a.{form}"
    if form == "zip":
        make_zip(archive, INSIDE)
    elif form == "deb":
        make_deb(archive, INSIDE)
    elif form == "folder":
        for name, data in INSIDE.items():
            (archive / name).parent.mkdir(parents=True, exist_ok=True)
            (archive / name).write_bytes(data)
    else:
        make_tar(archive, INSIDE, f"w:{form[-2:]}")
    assert extract(archive, tmp_path / "out", **WANTED) == sorted(FILES)
    assert content(tmp_path / "out") == FILES


def test_steps_into_an_archive_inside_and_decompresses(tmp_path: Path) -> None:
    inner = io.BytesIO()
    make_tar(inner, {"deep/big.bin.gz": gz(FILES["big.bin"])})
    outer = make_zip(tmp_path / "a.zip", {"top/inner.tar.gz": inner.getvalue()})
    prefix = "top/inner.tar.gz!deep/"
    assert extract(outer, tmp_path / "out", prefix=prefix, keep=["*.gz"], gunzip=True, limit=10**6) == [
        "big.bin"
    ]
    assert content(tmp_path / "out") == {"big.bin": FILES["big.bin"]}


@pytest.mark.parametrize(
    "name", ["../escape.bin", "package/../../escape.bin", "/abs/escape.bin", "C:/escape.bin"]
)
@pytest.mark.parametrize("form", ["zip", "tar"])
def test_an_unsafe_path_refuses_the_archive(tmp_path: Path, name: str, form: str) -> None:
    make = make_zip if form == "zip" else make_tar
    archive = make(tmp_path / "a", {name: b"gotcha"})
    with pytest.raises(UserError, match="unsafe path"):
        extract(archive, tmp_path / "x" / "out", prefix="", keep=["*"], limit=100)
    assert not list(tmp_path.rglob("escape.bin"))


def test_links_are_left_out(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tgz", INSIDE, link="package/link.bin")
    assert extract(archive, tmp_path / "out", **WANTED) == sorted(FILES)
    bundle = zipfile.ZipFile(tmp_path / "b.zip", "w")
    link = zipfile.ZipInfo("package/link.bin")
    link.external_attr = 0o120777 << 16
    with bundle:
        bundle.writestr(link, "/etc/passwd")
    assert list(members(tmp_path / "b.zip")) == []


def test_stops_at_the_limit(tmp_path: Path) -> None:
    bomb = make_zip(tmp_path / "a.zip", {"package/zeros.bin": b"\0" * 5_000_000})
    with pytest.raises(UserError, match="more than the catalogue says"):
        extract(bomb, tmp_path / "out", prefix="package/", keep=["*"], limit=1_000_000)
    packed = make_zip(tmp_path / "b.zip", {"package/zeros.bin.gz": gz(b"\0" * 5_000_000)})
    with pytest.raises(UserError, match="more than the catalogue says"):
        extract(packed, tmp_path / "out2", prefix="package/", keep=["*"], gunzip=True, limit=1_000_000)


@pytest.mark.parametrize("form", ["zip", "tar", "deb"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.95])
def test_a_truncated_archive_is_refused(tmp_path: Path, form: str, share: float) -> None:
    data = bytes(range(256)) * 40 + b"".join(i.to_bytes(4, "big") for i in range(20_000))
    make = {"zip": make_zip, "tar": make_tar, "deb": make_deb}[form]
    archive = make(tmp_path / "whole", {"package/big.bin": data})
    raw = archive.read_bytes()
    archive.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(UserError, match="not a whole, readable archive"):
        extract(archive, tmp_path / "out", **WANTED)


def test_a_missing_inner_archive_is_named(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", INSIDE)
    with pytest.raises(UserError, match=r"expected nothing\.tgz"):
        extract(archive, tmp_path / "out", prefix="nothing.tgz!x/", keep=["*"], limit=100)
