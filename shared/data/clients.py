"""Getting one package's archive with the ordinary client of its registry, or a file by its address."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.data.entries import EmbeddedSet
from shared.errors import UserError

CHUNK = 1 << 18
TIMEOUT = 60  # seconds without a byte from a server
Report = Callable[[int], None]  # told the bytes so far


def download(entry: EmbeddedSet, folder: Path, report: Report) -> Path:
    """Fetch the package of `entry` into the empty `folder`; return its archive, not yet verified.

    Raises:
        UserError: the client is absent or failed, with the end of what it said.
    """
    {"debian": _debian, "npm": _npm}.get(entry.registry, _pypi)(entry, folder, report)
    archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".gz", ".deb", ".tgz", ".zip")]
    if len(archives) != 1:
        raise UserError(f"{entry.source}: expected one archive, found {[path.name for path in archives]}.")
    return archives[0]


def _pypi(entry: EmbeddedSet, folder: Path, report: Report) -> None:
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{entry.source}: expected pip in {sys.executable}, found none. Make it with: python -m ensurepip"
        )
    # With --hash pip compares the archive before it looks into it; a source package's set-up script, which
    # pip runs to read the metadata, is therefore never other than the one pinned here.
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{entry.package}=={entry.version} --hash=sha256:{entry.archive_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--retries", "2", "--dest", str(folder), "-r", str(pinned)]
    if entry.registry == "pypi-sdist":
        command += ["--no-binary=:all:"]
        if importlib.util.find_spec("setuptools"):  # else pip fetches a set-up tool into a place of its own
            command += ["--no-build-isolation"]
    else:
        command += ["--only-binary=:all:"]
    if entry.platform:
        command += ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"]
        command += [word for name in entry.platform for word in ("--platform", name)]
    _run(command, entry, folder, report)
    pinned.unlink()


def _debian(entry: EmbeddedSet, folder: Path, report: Report) -> None:
    if shutil.which("apt-get") is None:
        raise UserError(
            f"{entry.source}: this is a Debian package, and apt-get was not found on this system."
        )
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download"]
    exact = [*command, f"{entry.package}={entry.version}"]
    try:
        _run(exact, entry, folder, report)
        return
    except UserError as error:
        _refuse_disk_full(error)
        if os.geteuid() == 0:  # the lists may be stale or never read
            _run(["apt-get", "-q", "update"], entry, folder, report, check=False)
    for attempt in (
        exact,
        [*command, entry.package],
    ):  # another release may offer another version, same files
        try:
            _run(attempt, entry, folder, report)
            return
        except UserError as error:
            _refuse_disk_full(error)
            last = error
    hint = "" if os.geteuid() == 0 else " The package lists may be stale: try `sudo apt-get update` first."
    raise UserError(f"{last}{hint}")


def _npm(entry: EmbeddedSet, folder: Path, report: Report) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(f"{entry.source}: this is an npm package, and npm was not found on this system.")
    command = [npm, "pack", f"{entry.package}@{entry.version}", "--ignore-scripts", "--loglevel=error"]
    _run(command, entry, folder, report)


def _run(
    command: Sequence[str], entry: EmbeddedSet, folder: Path, report: Report, check: bool = True
) -> None:
    """Run a client inside `folder`, its temporary files too, so that what has arrived can be counted."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    log = scratch / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        try:
            while process.poll() is None:
                report(min(_bytes_below(folder), entry.bytes))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    said = log.read_text("utf-8", "replace")
    shutil.rmtree(scratch, ignore_errors=True)
    if check and process.returncode != 0:
        if "no space left on device" in said.lower():
            raise DiskFull(f"{entry.source}: no space left on the disk of {folder}.")
        raise UserError(f"{entry.source}: {command_name(command)} failed: {_last_words(said)}")


class DiskFull(UserError):
    """Nothing else needs to be tried."""


def _refuse_disk_full(error: UserError) -> None:
    if isinstance(error, DiskFull):
        raise error


def command_name(command: Sequence[str]) -> str:
    return "pip" if "pip" in command[:3] else Path(command[0]).name


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [
        line for line in lines if line.startswith(("ERROR", "E:", "npm error", "npm ERR", "Expected", "Got"))
    ]
    return " / ".join((telling or lines or ["it said nothing"])[-4:])[:700]


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # moved meanwhile
            total += path.stat().st_size
    return total


def get_url(url: str, target: Path, report: Report) -> None:
    """Download `url` to `target`; shorter than announced is an error.

    Raises:
        UserError: no connection, a refusal, or an early end.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "paperworks"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, target.open("wb") as out:
            announced = int(answer.headers.get("Content-Length") or 0)
            total = 0
            while chunk := answer.read(CHUNK):
                out.write(chunk)
                total += len(chunk)
                report(total)
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
        raise UserError(f"{url}: {getattr(error, 'reason', None) or error}") from error
    if total < announced:
        raise UserError(f"{url}: expected {announced:,} bytes, the connection ended after {total:,}.")
