"""Domains by name: the paper's real sets and small embedded ones, behind one door."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.data.catalogue import Requirement, requirement
from shared.errors import UserError, suggest

if TYPE_CHECKING:
    from projects.recit.data.pools import Pool

REAL = ("mini-imagenet", "crop-diseases", "eurosat", "isic", "chestx")
EMBEDDED = {  # name -> sets of the catalogue
    "digits": (),
    "grey-textures": ("skimage-photos",),
    "textures": ("skimage-photos",),
    "stamps": ("stamps", "skimage-photos"),
    "fashion-mnist": ("fashion-mnist",),
    "furniture": ("furniture",),
}
NAMES = (*REAL, *EMBEDDED)


def load_pool(name: str, part: str, config: Any) -> Pool:
    """The pool of a domain.

    Args:
        part: base (trained on) or novel (tested on): other classes of miniImageNet, other images of digits
            and stamps. Of a target there is only one.

    Raises:
        UserError: an unknown name, or data that are missing or wrong.
    """
    check_name(name)
    if name in EMBEDDED:
        from projects.recit.data import laptop

        return laptop.READERS[name](part, config.network.image_size, config.seed)
    root = data_root(config)
    if config.domains.layout == "lists":
        from projects.recit.data import file_lists

        return file_lists.read_list(name, root / file_lists.FOLDERS[name] / f"{part}.json")
    from projects.recit.data import real

    return real.READERS[name](root, part)


def requirements(config: Any) -> list[Requirement]:
    """The data of `config.domains`, each set once."""
    needs: dict[str, Requirement] = {}
    for name in [config.domains.source, *config.domains.targets]:
        check_name(name)
        for entry in EMBEDDED.get(name, ()):
            needs[entry] = requirement(entry)
        if name == "digits":
            from shared.data.images import image_requirements

            needs |= {need.name: need for need in image_requirements("digits")}
        if name in REAL:
            needs[name] = _real(name, config)
    return list(needs.values())


def check_name(name: str) -> None:
    if name not in NAMES:
        raise UserError(f"there is no domain '{name}'.{suggest(name, NAMES)} There are: {', '.join(NAMES)}.")


def data_root(config: Any) -> Path:
    if not config.data.root:
        raise UserError("data.root is not set: it is the folder that holds the real sets.")
    return Path(config.data.root).expanduser()


def _real(name: str, config: Any) -> Requirement:
    if config.domains.layout == "folders":
        return requirement("isic2018-classification" if name == "isic" else name, config.data.root)
    from projects.recit.data.file_lists import FOLDERS

    parts = "{base,novel}.json" if name == "mini-imagenet" else "novel.json"
    path = Path(config.data.root).expanduser() / FOLDERS[name] / "novel.json" if config.data.root else None
    layout = f"{FOLDERS[name]}/{parts} below data.root, a JSON file list"
    return Requirement(f"{name}-list", "data", path, layout, "write it with projects.recit.data.file_lists")
