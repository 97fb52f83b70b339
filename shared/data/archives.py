"""Taking files out of untrusted zip, tar and Debian archives."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from shared.errors import UserError

CHUNK = 1 << 20
INNER_FACTOR = 20  # an archive inside an archive may be this many times as large as the outer one
Member = tuple[str, IO[bytes]]


def extract(
    archive: Path, folder: Path, *, prefix: str, keep: Sequence[str], gunzip: bool = False, limit: int
) -> list[str]:
    """Copy the files of `archive` below `prefix` that match one of the patterns `keep` into `folder`.

    Args:
        archive: zip (or wheel), tar (any compression of the standard library), Debian package, or a folder.
        folder: is created; must not hold anything of value.
        prefix: where the files begin; the paths below it are kept. `inner.tar.gz!rest/` steps into one.
        keep: patterns of `fnmatch` on the path below `prefix`; `*` also crosses folders.
        gunzip: store `x.gz` decompressed as `x`.
        limit: most bytes written in all, against archives that expand without end.

    Returns:
        The paths written, sorted, relative to `folder`.

    Raises:
        UserError: not an archive, truncated, an unsafe name in it, or over the limit. Links and devices are
            left out, never made or followed.
    """
    try:
        if "!" in prefix:
            inner, rest = prefix.split("!", 1)
            part = folder.parent / f"{folder.name}.inner"
            written = _copy(archive, part, "", (inner,), False, INNER_FACTOR * archive.stat().st_size)
            if not written:
                raise UserError(f"expected {inner} in {archive.name}, found no such file there.")
            return extract(part / inner, folder, prefix=rest, keep=keep, gunzip=gunzip, limit=limit)
        return _copy(archive, folder, prefix, keep, gunzip, limit)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, gzip.BadGzipFile) as error:
        raise UserError(f"{archive.name} is not a whole, readable archive ({error}).") from error


def _copy(
    archive: Path, folder: Path, prefix: str, keep: Sequence[str], gunzip: bool, limit: int
) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    written, total = [], 0
    for name, stream in members(archive):
        path = safe(name, archive)
        below = path.removeprefix(prefix)
        if not path.startswith(prefix) or not any(fnmatchcase(below, pattern) for pattern in keep):
            continue
        with stream:
            source: IO[bytes] = stream
            if gunzip and below.endswith(".gz"):
                below, source = below.removesuffix(".gz"), gzip.GzipFile(fileobj=stream)
            target = folder / below
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                total += _pour(source, out, limit - total, archive)
            written.append(below)
    return sorted(written)


def _pour(source: IO[bytes], out: IO[bytes], left: int, archive: Path) -> int:
    total = 0
    while chunk := source.read(CHUNK):
        total += len(chunk)
        if total > left:
            raise UserError(
                f"{archive.name} holds more than the catalogue says; stopped after {total:,} bytes."
            )
        out.write(chunk)
    return total


def safe(name: str, archive: Path) -> str:
    """`name` with forward slashes, or a `UserError` when it would leave the folder it is extracted to."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and ":" in path.parts[0]):
        raise UserError(f"{archive.name}: refused, it holds the unsafe path {name!r}.")
    return str(path)


def members(archive: Path) -> Iterator[Member]:
    """Name and open stream of every plain file in `archive`, in its order."""
    if archive.is_dir():
        for path in sorted(archive.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(archive).as_posix(), path.open("rb")
        return
    with archive.open("rb") as file:
        start = file.read(8)
    if start == b"!<arch>\n":
        yield from _debian(archive)
    elif start[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(archive) as bundle:
            for info in bundle.infolist():
                link = (info.external_attr >> 16) & 0o170000 == 0o120000
                if not info.is_dir() and not link:
                    yield info.filename, bundle.open(info)
    else:
        with tarfile.open(archive) as bundle:
            yield from _tar(bundle)


def _tar(bundle: tarfile.TarFile) -> Iterator[Member]:
    for info in bundle:
        if info.isreg() and (stream := bundle.extractfile(info)) is not None:
            yield info.name, stream


def _debian(archive: Path) -> Iterator[Member]:
    """A .deb is an `ar` archive of three files, of which `data.tar.*` holds what would be installed."""
    with archive.open("rb") as file:
        file.seek(8)
        while len(header := file.read(60)) == 60:
            name = header[:16].decode("ascii", "replace").strip().rstrip("/")
            size = int(header[48:58])
            if not name.startswith("data.tar"):
                file.seek(size + size % 2, 1)  # members begin at even offsets
            elif name.endswith(".zst"):  # not in the standard library before Python 3.14
                yield from _debian_by_tool(archive)
                return
            else:
                with tarfile.open(fileobj=file, mode="r|*") as bundle:
                    yield from _tar(bundle)
                return
    raise ValueError("no data.tar in the Debian package")


def _debian_by_tool(archive: Path) -> Iterator[Member]:
    if shutil.which("dpkg-deb") is None:
        raise UserError(
            f"{archive.name} is packed with zstandard: expected dpkg-deb to unpack it, found none."
        )
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as bundle:
            yield from _tar(bundle)
