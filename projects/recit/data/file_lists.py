"""The JSON file lists of the official code: `<root>/<Set>/{base,val,novel}.json`.

An object `{"label_names": [...], "image_names": [paths], "image_labels": [numbers]}`; a target has all of its
images in `novel.json`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from projects.recit.data.pools import Pool
from shared.errors import UserError

FOLDERS = {
    "mini-imagenet": "miniImageNet",
    "crop-diseases": "CropDiseases",
    "eurosat": "EuroSAT",
    "isic": "ISIC",
    "chestx": "ChestX",
}
KEYS = ("label_names", "image_names", "image_labels")


def read_list(name: str, path: Path) -> Pool:
    """The pool of a list; paths that are not absolute are below the list's folder.

    Labels need not begin at 0 (of miniImageNet's novel part they may begin at 80): the numbers that occur are
    the classes, called by the name at that place, or by their number where the names are fewer.

    Raises:
        UserError: no such file, no such JSON, lists of unequal lengths, a label that is no number, or files
            that are missing.
    """
    if not path.is_file():
        raise UserError(f"{name}: expected the file list {path}, found none.")
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.") from None
    found = sorted(content) if isinstance(content, dict) else type(content).__name__
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in KEYS):
        raise UserError(f"{path}: expected an object with the lists {', '.join(KEYS)}; found {found}.")
    labels, images = content["image_labels"], [path.parent / str(each) for each in content["image_names"]]
    if len(labels) != len(images) or not labels:
        raise UserError(f"{path}: expected as many labels as images; found {len(labels)} and {len(images)}.")
    if wrong := [each for each in labels if not isinstance(each, int) or isinstance(each, bool) or each < 0]:
        raise UserError(f"{path}: expected labels that are numbers from 0 on, found {wrong[0]!r}.")
    if absent := [image for image in images if not image.is_file()]:
        raise UserError(
            f"{path}: {len(absent)} of {len(images)} images are missing, the first is {absent[0]}. "
            "The paths of a list are those of the machine that wrote it; write it anew."
        )
    numbers = sorted(set(labels))
    names = content["label_names"]
    classes = [str(names[n] if n < len(names) else n) for n in numbers]
    if numbers[-1] >= len(names) == len(numbers):
        classes = [str(each) for each in names]  # the names of these classes alone
    place = {number: index for index, number in enumerate(numbers)}
    return Pool(name, images, torch.tensor([place[label] for label in labels]), tuple(classes))


def write_list(pool: Pool, path: Path) -> None:
    """The list of a pool of files, with absolute paths."""
    content = {
        "label_names": list(pool.classes),
        "image_names": [str(image.absolute()) for image in pool.images],
        "image_labels": pool.labels.tolist(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")
