"""Digits of scikit-learn pasted on backgrounds: 0-4 in one style to learn from, 5-9 in three others."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from projects.cdfss_sharpness.data.pasting import (
    Scenes,
    Stream,
    enlarged,
    grey,
    paste,
    random_crop,
    smooth_noise,
)
from shared.errors import UserError, suggest

INK = 0.4  # intensity from which a pixel belongs to the digit
SIDES = (0.4, 0.75)  # of a digit, over the side of the image
LEARNED, NOVEL = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
TEXTURES = ("brick", "grass", "gravel")
WARM = np.float32([[0.95, 0.35, 0.2], [0.95, 0.7, 0.2], [0.85, 0.85, 0.3], [0.9, 0.5, 0.55]])  # the digits
COOL = np.float32([[0.1, 0.15, 0.35], [0.1, 0.3, 0.35], [0.15, 0.35, 0.2], [0.25, 0.15, 0.35]])  # behind them
NOISE = 0.2  # standard deviation


def scenes(name: str, size: int, heldout: bool = False) -> Scenes:
    """`source`, or the target `inverted`, `textured` or `noisy`, at `size` x `size` pixels.

    Args:
        heldout: of the source, the digits that were not trained on.
    """
    styles: dict[str, Callable] = {
        "source": lambda draw, stream: draw(cool_background(size, stream)),
        "inverted": lambda draw, stream: _inverted(draw(cool_background(size, stream))),
        "textured": lambda draw, stream: draw(texture(size, stream)),
        "noisy": lambda draw, stream: _noisy(draw(cool_background(size, stream)), stream),
    }
    if name not in styles:
        raise UserError(
            f"the digits have no domain {name!r}.{suggest(name, styles)} They have: {', '.join(styles)}."
        )
    classes = LEARNED if name == "source" else NOVEL
    shapes = _shapes(not heldout)

    def compose(label: int, instance: int, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
        own = shapes[classes[label]][instance]
        other = None
        if stream.random() < 0.5:
            digit = classes[(label + 1 + stream.integers(len(classes) - 1)) % len(classes)]
            other = shapes[digit][stream.integers(len(shapes[digit]))]

        def draw(background: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            for shape in (other, own):
                if shape is not None:
                    laid = _draw(background, shape, size, stream)
            return background, laid > 0.5

        return styles[name](draw, stream)

    title = f"digits/{name}{'/heldout' if heldout else ''}"
    return Scenes(title, tuple(map(str, classes)), tuple(len(shapes[digit]) for digit in classes), compose)


def cool_background(size: int, stream: Stream) -> np.ndarray:
    """Two dark, cool colours mixed by smooth noise."""
    first, second = COOL[stream.permutation(len(COOL))[:2]]
    share = smooth_noise(size, 6, stream)[..., None]
    return (share * first + (1 - share) * second).astype(np.float32)


def texture(size: int, stream: Stream) -> np.ndarray:
    """A crop of brick, grass or gravel."""
    from shared.vision.textures import photograph

    return random_crop(photograph(TEXTURES[stream.integers(len(TEXTURES))]), size, stream)


def _draw(background: np.ndarray, shape: np.ndarray, size: int, stream: Stream) -> np.ndarray:
    """Lay one digit in a warm colour, shaded by its own intensity; returns where."""
    intensity = enlarged(shape, int(stream.integers(int(SIDES[0] * size), int(SIDES[1] * size) + 1)))
    colour = WARM[stream.integers(len(WARM))] + stream.normal(0, 0.05, 3).astype(np.float32)
    shaded = colour * (0.6 + 0.4 * intensity[..., None])
    return paste(background, shaded.clip(0, 1), (intensity > INK).astype(np.float32), stream)


def _inverted(drawn: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return 1 - drawn[0], drawn[1]


def _noisy(drawn: tuple[np.ndarray, np.ndarray], stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    picture = grey(drawn[0])
    return picture + stream.normal(0, NOISE, picture.shape).astype(np.float32), drawn[1]


@functools.lru_cache(maxsize=2)
def _shapes(train: bool) -> tuple[np.ndarray, ...]:
    """For each digit its images, float32 (n, 8, 8) of 0..1."""
    from shared.data.images import load_images

    found = load_images("digits", train)
    images = found.images[:, 0].float().numpy() / 255
    labels = found.labels.numpy()
    return tuple(images[labels == digit] for digit in range(found.classes))
