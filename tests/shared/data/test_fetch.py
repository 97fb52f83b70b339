from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shared.data import fetch as module
from shared.data.clients import get_url
from shared.data.entries import Alternative
from shared.data.fetch import fetch, locate, verify
from shared.errors import UserError
from tests.shared.data.conftest import FILES, described, gz, make_deb, make_tar, make_wheel

REPO = Path(__file__).parents[3]


def read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def nothing_left(cache: Path) -> bool:
    """No set, no half-finished work."""
    partial_folder = cache / "data" / ".partial"
    return not (cache / "data" / "toyset").exists() and not list(partial_folder.glob("*"))


def test_npm_package_is_fetched_once_and_verified(cache, catalogue, client, package, tmp_path) -> None:
    catalogue(described(package))
    client("npm", f'echo "$@" >> {tmp_path}/calls; cp {package} .')
    assert locate("toyset") is None
    folder = fetch("toyset")
    assert folder == cache / "data" / "toyset" == fetch("toyset") == locate("toyset")
    assert read(folder) == FILES
    assert not (folder / "index.js").exists()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == set(FILES)
    assert manifest["files"]["big.bin"][0] == len(FILES["big.bin"])
    assert (tmp_path / "calls").read_text().count("toy-package@1.0") == 1
    assert verify("toyset") == []
    assert not list((cache / "data" / ".partial").iterdir())


def test_pip_checks_the_hash_itself(cache, catalogue, tmp_path, monkeypatch) -> None:
    store = tmp_path / "wheels"
    store.mkdir()
    wheel = make_wheel(store, "toy_wheel", "1.0", FILES)
    entry = described(wheel, registry="pypi-wheel", package="toy-wheel", prefix="toy_wheel/")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(store))
    catalogue(replace(entry, archive_sha256="0" * 64))
    with pytest.raises(UserError, match=f"Expected sha256 {'0' * 64}"):
        fetch("toyset")
    assert nothing_left(cache)
    catalogue(entry)
    assert read(fetch("toyset")) == FILES


def test_debian_updates_its_lists_when_they_are_stale(
    cache, catalogue, client, tmp_path, monkeypatch
) -> None:
    deb = make_deb(tmp_path / "toy.deb", {f"usr/share/toy/{name}": data for name, data in FILES.items()})
    catalogue(described(deb, registry="debian", prefix="usr/share/toy/"))
    script = (
        f'case "$*" in *update*) touch {tmp_path}/fresh;; '
        f"*) if [ -f {tmp_path}/fresh ]; then cp {deb} .; "
        "else echo 'E: Version not found'; exit 100; fi;; esac"
    )
    client("apt-get", script)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match=r"Version not found.*sudo apt-get update"):
        fetch("toyset")
    assert nothing_left(cache)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert read(fetch("toyset")) == FILES


def test_debian_package_of_another_release_with_the_same_files(cache, catalogue, client, tmp_path) -> None:
    pinned = make_deb(tmp_path / "pinned.deb", {f"usr/{name}": data for name, data in FILES.items()})
    other = make_deb(tmp_path / "other.deb", {"usr/new": b"n"} | {f"usr/{n}": d for n, d in FILES.items()})
    catalogue(described(pinned, registry="debian", prefix="usr/"))
    client("apt-get", f'case "$*" in *=1.0|*update*) exit 100;; *) cp {other} .;; esac')
    assert read(fetch("toyset")) == FILES


@pytest.fixture
def web(tmp_path):
    """`web(files)` serves the files and returns the address."""
    root = tmp_path / "web"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def serve(files: dict[str, bytes]) -> str:
        for name, data in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield serve
    server.shutdown()
    server.server_close()


def test_the_public_source_stands_in_for_an_absent_client(
    cache, catalogue, package, monkeypatch, web, tmp_path
):
    other = make_tar(tmp_path / "other.tgz", {f"moved/{name}": data for name, data in FILES.items()})
    url = web({"other.tgz": other.read_bytes()})
    monkeypatch.setenv("PATH", "/nonexistent")
    catalogue(described(package))
    with pytest.raises(UserError, match=r"npm was not found(.|\n)*--from FILE"):
        fetch("toyset")
    catalogue(described(package, alternatives=(Alternative(f"{url}other.tgz", "moved/"),)))
    assert read(fetch("toyset")) == FILES


def test_loose_files_of_the_public_source(cache, catalogue, package, monkeypatch, web):
    url = web({f"{name}.gz": gz(data) for name, data in FILES.items()})
    monkeypatch.setenv("PATH", "/nonexistent")
    files = tuple(f"{name}.gz" for name in FILES)
    entry = described(package, keep=("*",), gunzip=True)
    bad = Alternative(f"{url}no/such/place/", files=files)
    catalogue(replace(entry, alternatives=(bad, Alternative(url, files=files))))
    assert read(fetch("toyset")) == FILES


def test_a_changed_public_source_is_refused(cache, catalogue, package, monkeypatch, web):
    changed = dict(FILES) | {"sub/notes.txt": b"b note\n"}  # the key file is right, another is not
    url = web(changed)
    monkeypatch.setenv("PATH", "/nonexistent")
    catalogue(described(package, keep=("*",), alternatives=(Alternative(url, files=tuple(changed)),)))
    with pytest.raises(UserError, match="wrong checksum: expected files with digest"):
        fetch("toyset")
    assert nothing_left(cache)


def test_a_connection_that_ends_early_is_an_error(tmp_path) -> None:
    import socket

    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nshort")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(UserError, match=r"expected 100 bytes, the connection ended after 5"):
        get_url(f"http://127.0.0.1:{listener.getsockname()[1]}/x", tmp_path / "x", lambda done: None)
    listener.close()


def test_a_wrong_checksum_says_what_was_expected_and_changes_nothing(
    cache, catalogue, client, package
) -> None:
    client("npm", f"cp {package} .")
    catalogue(described(package))
    good = fetch("toyset")
    neighbour = cache / "data" / "neighbour"
    neighbour.mkdir()
    (neighbour / "precious").write_text("x")
    newer = described(package, key_sha256="1" * 64, contents_sha256="2" * 64, version="2.0")
    catalogue(newer)
    assert locate("toyset") is None  # what is there is not what the catalogue asks for now
    with pytest.raises(UserError) as caught:
        fetch("toyset")
    text = str(caught.value)
    assert "1" * 64 in text and newer.key_sha256 in text and described(package).key_sha256 in text
    assert "nothing in the cache was changed" in text and "--from FILE" in text
    assert read(good) == FILES and (neighbour / "precious").exists()


def test_a_truncated_package_names_both_digests(cache, catalogue, client, package, tmp_path) -> None:
    short = tmp_path / "short.tgz"
    short.write_bytes(package.read_bytes()[:-30])
    client("npm", f"cp {short} .")
    catalogue(described(package))
    with pytest.raises(UserError, match="is not the archive of the catalogue: expected SHA-256"):
        fetch("toyset")
    assert nothing_left(cache)


def test_an_archive_at_hand_is_taken_and_checked(cache, catalogue, package, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    catalogue(described(package))
    with pytest.raises(UserError, match="no such file"):
        fetch("toyset", tmp_path / "absent.tgz")
    wrong = make_tar(tmp_path / "wrong.tgz", {"package/big.bin": b"other"})
    with pytest.raises(UserError, match=r"wrong checksum of big\.bin"):
        fetch("toyset", wrong)
    assert nothing_left(cache)
    assert read(fetch("toyset", package)) == FILES


def test_damage_is_seen_and_mended(cache, catalogue, client, package) -> None:
    client("npm", f"cp {package} .")
    catalogue(described(package))
    folder = fetch("toyset")
    flipped = b"W" + FILES["big.bin"][1:]
    (folder / "big.bin").write_bytes(flipped)
    assert locate("toyset") == folder  # same size: only reading the files can tell
    assert "big.bin has changed" in verify("toyset")[0]
    (folder / "big.bin").write_bytes(b"cut")
    assert locate("toyset") is None
    assert read(fetch("toyset")) == FILES
    assert verify("toyset") == []
    (folder / "sub" / "notes.txt").unlink()
    assert "notes.txt is missing" in verify("toyset")[0]
    (folder / "manifest.json").write_text("[]")
    assert locate("toyset") is None and "no readable manifest.json" in verify("toyset")[0]


def test_a_present_set_is_not_read_again(cache, catalogue, client, package, monkeypatch) -> None:
    client("npm", f"cp {package} .")
    catalogue(described(package))
    folder = fetch("toyset")

    def read_again(*args: object) -> None:
        raise AssertionError("a large file would be hashed at every start")

    monkeypatch.setattr(hashlib, "file_digest", read_again)
    assert fetch("toyset") == folder
    with pytest.raises(AssertionError):
        verify("toyset")


IN_A_PROCESS = """
import pickle, sys
from shared.data import entries
item = pickle.loads(open(sys.argv[1], "rb").read())
entries.embedded_sets = lambda: {item.name: item}
from shared.data.fetch import fetch
print(fetch(item.name))
"""


def start(entry, tmp_path: Path) -> subprocess.Popen:
    import pickle

    (tmp_path / "entry.pickle").write_bytes(pickle.dumps(entry))
    return subprocess.Popen(
        [sys.executable, "-c", IN_A_PROCESS, str(tmp_path / "entry.pickle")],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_fetch_once(cache, client, package, tmp_path) -> None:
    client("npm", f"echo call >> {tmp_path}/calls; sleep 1; cp {package} .")
    both = [start(described(package), tmp_path) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert (tmp_path / "calls").read_text() == "call\n"
    assert sum("waiting" in errors for _, errors in said) == 1
    assert read(cache / "data" / "toyset") == FILES


def test_a_killed_fetch_leaves_nothing_half_present(cache, catalogue, client, package, tmp_path) -> None:
    client("npm", f"echo $$ > {tmp_path}/child; head -c 50 {package} > half.tgz; exec sleep 60")
    process = start(described(package), tmp_path)
    deadline = time.monotonic() + 30
    half = cache / "data" / ".partial" / "toyset" / "work" / "half.tgz"
    while not (half.exists() and half.stat().st_size == 50):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    catalogue(described(package))
    assert locate("toyset") is None and not (cache / "data" / "toyset").exists()
    client("npm", f"cp {package} .")
    assert read(fetch("toyset")) == FILES
    assert not list((cache / "data" / ".partial").iterdir())


def test_a_full_disk_is_told_before_and_during(cache, catalogue, client, package, monkeypatch) -> None:
    client("npm", f"cp {package} .")
    catalogue(described(package))
    usage = shutil.disk_usage("/")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(UserError, match=r"MB free below .*PAPERWORKS_CACHE"):
            fetch("toyset")
    with monkeypatch.context() as patch:

        def full(*args: object, **more: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(module, "extract", full)
        with pytest.raises(UserError, match="no space left below"):
            fetch("toyset")
    assert nothing_left(cache)
    client("npm", "echo 'npm error ENOSPC: no space left on device, write'; exit 228")
    catalogue(described(package, alternatives=(Alternative("http://127.0.0.1:9/never-asked"),)))
    with pytest.raises(UserError, match="no space left on the disk") as caught:
        fetch("toyset")
    assert "never-asked" not in str(caught.value)
    assert nothing_left(cache)


def test_an_unwritable_cache_is_told(catalogue, package, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PAPERWORKS_CACHE", str(tmp_path / "file" / "cache"))
    catalogue(described(package))
    with pytest.raises(UserError, match=r"expected a cache folder that can be written.*PAPERWORKS_CACHE"):
        fetch("toyset")


def test_names(cache: Path, catalogue: Callable[..., None], package: Path) -> None:
    catalogue(described(package))
    with pytest.raises(UserError, match="Did you mean 'toyset'"):
        fetch("toysett")
    with pytest.raises(UserError, match=r"cannot be fetched for you(.|\n)*mini_imagenet_full_size"):
        fetch("mini-imagenet")
