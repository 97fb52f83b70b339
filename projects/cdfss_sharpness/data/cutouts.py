"""Stamps with their own alpha masks on photographs: some categories to learn from, others elsewhere."""

from __future__ import annotations

import functools

import numpy as np

from projects.cdfss_sharpness.data.pasting import Scenes, Stream, enlarged, grey, paste, random_crop
from shared.errors import UserError, suggest

SIDES = (0.45, 0.8)  # of a stamp, over the side of the image
SOURCE_CLASSES = (
    *("animals/mammals", "animals/birds", "animals/insects", "animals/fish"),
    *("food/fruit", "food/vegetables", "plants/flowers", "town/houses"),
)
SOURCE_PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "motorcycle_left", "clock_motion")
TARGETS = {  # classes and photographs that the source has not
    "ink": (("household/tools", "hobbies/music", "symbols/chess"), ("page", "text")),
    "microscope": (("clothes", "clothes/hats", "sports"), ("ihc", "retina", "cell")),
    "negative": (("seasonal/christmas", "seasonal/halloween", "vehicles"), ("brick", "grass", "gravel")),
}
HELDOUT = 4  # every fourth stamp of a source class is not trained on


def scenes(name: str, size: int, heldout: bool = False) -> Scenes:
    """`source`, or the target `ink` (grey, on print), `microscope` (on slides) or `negative` (inverted).

    Args:
        heldout: of the source, the stamps that were not trained on.
    """
    known = ("source", *TARGETS)
    if name not in known:
        raise UserError(
            f"the stamps have no domain {name!r}.{suggest(name, known)} They have: {', '.join(known)}."
        )
    classes, photographs = TARGETS.get(name, (SOURCE_CLASSES, SOURCE_PHOTOGRAPHS))
    shapes = [_stamps(kind) for kind in classes]
    if name == "source":
        shapes = [[s for n, s in enumerate(own) if (n % HELDOUT == 0) == heldout] for own in shapes]

    def compose(label: int, instance: int, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
        from shared.vision.textures import photograph

        source = photograph(photographs[stream.integers(len(photographs))])
        picture = random_crop(source, min(2 * size, *source.shape[:2]), stream)
        picture = enlarged(picture, size)[:size, :size].copy()
        if stream.random() < 0.5:
            other = (label + 1 + stream.integers(len(classes) - 1)) % len(classes)
            _lay(picture, shapes[other][stream.integers(len(shapes[other]))], size, stream)
        mask = _lay(picture, shapes[label][instance], size, stream) > 0.5
        return _styled(name, picture), mask

    title = f"stamps/{name}{'/heldout' if heldout else ''}"
    return Scenes(title, classes, tuple(map(len, shapes)), compose)


def _styled(name: str, picture: np.ndarray) -> np.ndarray:
    return {"ink": grey, "negative": lambda p: 1 - p}.get(name, lambda p: p)(picture)


def _lay(picture: np.ndarray, stamp: np.ndarray, size: int, stream: Stream) -> np.ndarray:
    side = int(stream.integers(int(SIDES[0] * size), int(SIDES[1] * size) + 1))
    laid = enlarged(stamp, side)
    if stream.random() < 0.5:
        laid = laid[:, ::-1]
    alpha = laid[..., 3]
    colour = laid[..., :3] / np.maximum(alpha, 1e-3)[..., None]  # enlarged with alpha multiplied in
    return paste(picture, colour.clip(0, 1), alpha, stream)


@functools.lru_cache(maxsize=64)
def _stamps(kind: str) -> list[np.ndarray]:
    """Stamps of one kind, cropped to their masks: float32 (h, w, 4) of 0..1, colour multiplied by alpha.

    A kind without a second name stands for all stamps of that category (`vehicles`), but not for those of
    another class here that is narrower (`clothes` leaves out `clothes/hats`).
    """
    from shared.vision.stamps import cut_out, load

    narrower = {other for classes, _ in TARGETS.values() for other in classes if other.startswith(f"{kind}/")}
    chosen = [
        stamp.image.astype(np.float32) / 255
        for stamp in cut_out(load(max_side=64), 0.05, 0.95, centre=True)
        if (stamp.kind == kind or stamp.category == kind) and stamp.kind not in narrower
    ]
    return [np.concatenate([s[..., :3] * s[..., 3:], s[..., 3:]], 2) for s in chosen]
