"""Typed entries of the two catalogue files."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from shared.errors import UserError, suggest

REGISTRIES = ("pypi-wheel", "pypi-sdist", "debian", "npm")
KINDS = ("data", "weights")
HERE = Path(__file__).parent

T = TypeVar("T")


@dataclass(frozen=True)
class Alternative:
    """Another public source of the very same files: an archive, or (with `files`) loose files below `url`."""

    url: str
    prefix: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmbeddedSet:
    """Files taken out of one public package.

    Attributes:
        prefix: where the set begins inside the archive; `!` steps into an archive inside the archive.
        keep: glob patterns, relative to `prefix`, of the files that are extracted.
        gunzip: whether kept `.gz` files are stored decompressed, without the ending.
        bytes, archive_sha256: of the package's archive. `size` is that of the extracted files, in bytes.
        key_file, key_sha256: the file that matters most, relative to the set's folder.
        contents_sha256: SHA-256 of the lines `<sha256>  <path>` of all files in order of path, so that every
            source of the same files can be verified, whatever archive they come in.
        platform: of a wheel that is built for one system; its data are the same everywhere.
    """

    name: str
    title: str
    kind: str
    serves: str
    registry: str
    package: str
    version: str
    bytes: int
    archive_sha256: str
    prefix: str
    keep: tuple[str, ...]
    key_file: str
    key_sha256: str
    contents_sha256: str
    size: int
    licence: str
    layout: str
    gunzip: bool = False
    platform: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()

    @property
    def source(self) -> str:
        """The package in the notation of its client."""
        tool, joint = {"debian": ("apt-get", "="), "npm": ("npm", "@")}.get(self.registry, ("pip", "=="))
        return f"{tool}: {self.package}{joint}{self.version}"


@dataclass(frozen=True)
class RealSet:
    """A published data set that the user supplies below `data.root`.

    Attributes:
        papers: names of the papers that use it.
        expect: glob patterns below `data.root` of which each must match something; `a|b` means either.
        get: where to obtain it, and how to arrange it where the download has another layout.
    """

    name: str
    title: str
    kind: str
    papers: tuple[str, ...]
    expect: tuple[str, ...]
    licence: str
    get: str


@functools.cache
def embedded_sets() -> dict[str, EmbeddedSet]:
    """Name -> embedded set, in the order of the file."""
    return load(HERE / "embedded.yaml", EmbeddedSet)


@functools.cache
def real_sets() -> dict[str, RealSet]:
    """Name -> real set, in the order of the file."""
    return load(HERE / "real.yaml", RealSet)


def entry(name: str) -> EmbeddedSet | RealSet:
    """The entry called `name`; a `UserError` names the nearest one when there is none."""
    found = embedded_sets().get(name) or real_sets().get(name)
    if found is None:
        names = [*embedded_sets(), *real_sets()]
        raise UserError(
            f"no data set or weights called '{name}' in the catalogue.{suggest(name, names)} "
            "List all of them with: python scripts/download_data.py --list"
        )
    return found


def load(path: Path, form: type[T]) -> dict[str, T]:
    """Entries of a catalogue file; lists become tuples. A wrong file is a bug here, so it raises plainly."""
    # The compiled loader takes a tenth of the time; it is absent where PyYAML was built without libyaml.
    raw = yaml.load(path.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: build(form, name=name, **values) for name, values in raw.items()}


def build(form: type[T], **values: Any) -> T:
    known = {field.name: field for field in fields(form)}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{values.get('name', form.__name__)}: unknown key '{key}'")
        if key == "alternatives":
            values[key] = tuple(build(Alternative, **item) for item in value)
        elif isinstance(value, list):
            values[key] = tuple(value)
        elif isinstance(value, str):
            values[key] = value.strip()
    if values.get("kind", "data") not in KINDS or values.get("registry", "npm") not in REGISTRIES:
        raise ValueError(f"{values['name']}: kind takes {KINDS}, registry takes {REGISTRIES}")
    return form(**values)
