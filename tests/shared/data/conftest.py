"""Made-up packages of every registry, and a catalogue that knows them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shared.data import entries
from shared.data.entries import EmbeddedSet
from shared.data.fetch import contents_digest

FILES = {"big.bin": b"weights " * 5000, "sub/notes.txt": b"a note\n"}


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, data in files.items():
            bundle.writestr(name, data)
    return path


def make_tar(path: Path | io.BytesIO, files: dict[str, bytes], mode: str = "w:gz", link: str = "") -> Path:
    target = {"fileobj": path} if isinstance(path, io.BytesIO) else {"name": path}
    with tarfile.open(mode=mode, **target) as bundle:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            bundle.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            bundle.addfile(info)
    return path


def make_deb(path: Path, files: dict[str, bytes]) -> Path:
    """A Debian package as `ar` writes it: an odd-sized member first, so that the padding is exercised."""
    data = io.BytesIO()
    make_tar(data, {f"./{name}": content for name, content in files.items()}, "w:xz")
    with path.open("wb") as out:
        out.write(b"!<arch>\n")
        for name, body in (
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", b"odd"),
            ("data.tar.xz", data.getvalue()),
        ):
            out.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode())
            out.write(body + b"\n" * (len(body) % 2))
    return path


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    wheel = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    whole = {f"{name}/{path}": data for path, data in files.items()}
    whole |= {f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel, f"{info}/RECORD": b""}
    return make_zip(folder / f"{name}-{version}-py3-none-any.whl", whole)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def described(archive: Path, files: dict[str, bytes] = FILES, **more: object) -> EmbeddedSet:
    """The catalogue's entry for an archive that holds `files` below `package/`."""
    key = next(iter(files))
    entry = EmbeddedSet(
        name="toyset",
        title="Toy set",
        kind="data",
        serves="tests",
        registry="npm",
        package="toy-package",
        version="1.0",
        bytes=archive.stat().st_size,
        archive_sha256=digest(archive.read_bytes()),
        prefix="package/",
        keep=("*.bin", "sub/*"),
        key_file=key,
        key_sha256=digest(files[key]),
        contents_sha256=contents_digest({name: digest(data) for name, data in files.items()}),
        size=sum(map(len, files.values())),
        licence="none",
        layout="big.bin and sub/notes.txt",
    )
    return replace(entry, **more)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PAPERWORKS_CACHE", str(folder))
    return folder


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`catalogue(entry, ...)` makes these the only embedded sets."""

    def use(*items: EmbeddedSet) -> None:
        monkeypatch.setattr(entries, "embedded_sets", lambda: {item.name: item for item in items})

    return use


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """`client("npm", script)` puts a shell script under that name first on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, script: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The npm package of the toy set, with a file that is not of the set."""
    files = {f"package/{name}": data for name, data in FILES.items()} | {"package/index.js": b"evil()"}
    return make_tar(tmp_path / "toy-package-1.0.tgz", files)


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)
