"""What a run needs: named sets and weights, whether they are there, and how to get the missing ones."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shared.data.entries import EmbeddedSet, RealSet, entry
from shared.data.fetch import locate
from shared.errors import UserError
from shared.paths import cache_dir


@dataclass(frozen=True)
class Requirement:
    """One thing a run needs.

    Attributes:
        name: of the catalogue, or a Hugging Face model id.
        kind: `embedded` (fetched into the cache), `data` or `weights` (supplied by the user).
        path: where it lies; for a real set of the catalogue the data root; None: nowhere yet.
        layout: what is expected there.
        get: how to get it.
    """

    name: str
    kind: str
    path: Path | None
    layout: str
    get: str


def requirement(name: str, data_root: str | Path = "") -> Requirement:
    """The catalogue's entry `name` as a requirement; real sets are looked for below `data_root`.

    Raises:
        UserError: no such name; the nearest one is offered.
    """
    item = entry(name)
    if isinstance(item, EmbeddedSet):
        command = f"python scripts/download_data.py {name}"
        return Requirement(name, "embedded", locate(name), item.layout, command)
    root = Path(data_root).expanduser() if data_root else None
    return Requirement(name, item.kind, root, ", ".join(item.expect), f"{item.get} Licence: {item.licence}")


def huggingface_requirement(model: str, licence: str = "see its model page") -> Requirement:
    """A Hugging Face model, by id or by local folder, as a requirement; looks at the disk only."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        path: Path | None = folder
    else:
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
        hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
        snapshots = hub / f"models--{model.replace('/', '--')}" / "snapshots"
        path = next((found.parent for found in sorted(snapshots.glob("*/config.json"))), None)
    layout = "a Hugging Face model folder (config.json, weights, tokenizer)"
    return Requirement(model, "weights", path, layout, f"hf download {model} (licence: {licence})")


def missing(requirements: Iterable[Requirement]) -> list[str]:
    """One text for each requirement that is not met: what is missing, what was expected, how to get it."""
    problems = []
    for need in requirements:
        if need.kind == "embedded":
            if need.path is None or locate(need.name) is None:
                item = entry(need.name)
                assert isinstance(item, EmbeddedSet)
                problems.append(
                    f"{need.name} ({item.title}, {item.bytes / 1e6:.1f} MB) is not in the cache "
                    f"{cache_dir() / 'data'}. Get it with: {need.get}"
                )
            continue
        problems += _missing_real(need)
    return problems


def _missing_real(need: Requirement) -> list[str]:
    try:
        item = entry(need.name)
    except UserError:  # not of the catalogue: a model by its id
        item = None
    if isinstance(item, RealSet) and need.path is not None:
        return [f"{text} Get it: {need.get}" for text in check_layout(item, need.path)]
    if isinstance(item, RealSet):
        return [
            f"{need.name} ({item.title}): data.root is not set. Expected below it: {need.layout}. "
            f"Get it: {need.get}"
        ]
    if need.path is None or not need.path.exists():
        where = f"nothing at {need.path}" if need.path else "nothing on this disk"
        return [f"{need.name}: expected {need.layout}, found {where}. Get it: {need.get}"]
    return []


def check_layout(item: RealSet, root: Path) -> list[str]:
    """What of the layout of `item` is not below `root`; empty when every pattern matches something."""
    if not root.is_dir():
        return [f"{item.name} ({item.title}): expected the folder {root} (data.root), found none."]
    absent = [
        pattern for pattern in item.expect if not any(_matches(root, one) for one in pattern.split("|"))
    ]
    if not absent:
        return []
    shown = ", ".join(" or ".join(pattern.split("|")) for pattern in absent[:3])
    more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
    return [
        f"{item.name} ({item.title}): {len(absent)} of {len(item.expect)} expected paths are missing below "
        f"{root}: {shown}{more}."
    ]


def _matches(root: Path, pattern: str) -> bool:
    return next(root.glob(pattern), None) is not None
