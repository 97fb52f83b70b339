"""Small real domains: handwritten digits, textures, stamps on photographs, clothes, furniture.

Each reader gives a pool of images ready for the network: `size` pixels a side, normalised.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from projects.recit.data.pools import MEAN, STD, Pool
from shared.data.catalogue import fetch
from shared.errors import UserError
from shared.training.seeding import generator
from shared.vision import stamps, textures

DIGITS_TRAIN = 1300
PER_TEXTURE, CROP = 40, 64
PER_FINE_TEXTURE = 25
PER_GARMENT = 25
FURNITURE = ("bed", "cabinet", "chair", "door", "lamp", "plug", "sofa", "table")  # 15 icons or more of each
KINDS = (  # of stamps, 11 or more of each
    *("animals/birds", "animals/fish", "animals/insects", "animals/mammals", "clothes", "food/fruit"),
    *("food/vegetables", "household/tools", "plants/flowers", "seasonal/christmas", "seasonal/halloween"),
    *("symbols/money", "town/houses", "town/roadsigns"),
)
BACKGROUNDS = tuple(name for name in textures.PHOTOGRAPHS if name not in textures.TEXTURES)
PASTED = {"base": 40, "novel": 20}  # pictures of each kind


def digits(part: str, size: int, seed: int) -> Pool:
    """Scikit-learn's digits, bicubic to `size`, (x - 0.3) / 0.35; 1,300 random ones train, the rest test."""
    from shared.data.images import load_images

    sets = [load_images("digits", train) for train in (True, False)]
    images = torch.cat([each.images for each in sets]).float()
    images = images / images.max()
    labels = torch.cat([each.labels for each in sets])
    order = torch.randperm(len(labels), generator=generator("digits", seed))
    places = order[:DIGITS_TRAIN] if part == "base" else order[DIGITS_TRAIN:]
    scaled = interpolate(images[places], size=(size, size), mode="bicubic", align_corners=False)
    scaled = (scaled - 0.3) / 0.35
    return Pool("digits", scaled.expand(-1, 3, -1, -1), labels[places], tuple("0123456789"))


def grey_textures(part: str, size: int, seed: int) -> Pool:
    """40 random grey crops of 64 pixels of each of 14 pictures, averaged to `size`, each standardised."""
    stream = generator("textures", seed)
    cut = [textures.crops(name, PER_TEXTURE, CROP, stream, grey=True) for name in textures.TEXTURES]
    pixels = torch.from_numpy(np.concatenate(cut)).float()[:, None]
    if CROP % size:
        raise UserError(f"grey-textures: expected an image size that divides {CROP}, found {size}.")
    pixels = avg_pool2d(pixels, CROP // size)
    pixels = pixels - pixels.mean((1, 2, 3), keepdim=True)
    pixels = pixels / pixels.std((1, 2, 3), keepdim=True).clamp(min=1e-6)
    return Pool("grey-textures", pixels.expand(-1, 3, -1, -1), _blocks(14, PER_TEXTURE), textures.TEXTURES)


def fine_textures(part: str, size: int, seed: int) -> Pool:
    """25 random grey crops of each of the same 14 pictures, half of `size` on a side, enlarged to `size`."""
    stream = generator("textures", seed)
    cut = [textures.crops(name, PER_FINE_TEXTURE, size // 2, stream, grey=True) for name in textures.TEXTURES]
    pixels = torch.from_numpy(np.concatenate(cut))[:, None].float()
    pixels = interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False)
    labels = _blocks(len(textures.TEXTURES), PER_FINE_TEXTURE)
    return Pool("textures", _normalised(pixels.expand(-1, 3, -1, -1)), labels, textures.TEXTURES)


def pasted_stamps(part: str, size: int, seed: int) -> Pool:
    """Cut-outs of 14 kinds, each pasted at a random size and place on a crop of one of five photographs.

    A third of the cut-outs of each kind is for the part `novel`, the others are for `base`; the photographs
    are none of those that the textures are cut from.
    """
    stream = generator("stamps", seed)
    found = stamps.load(max_side=size)
    images: list[np.ndarray] = []
    for kind in KINDS:
        own = [stamp for stamp in found if stamp.kind == kind]
        order = torch.randperm(len(own), generator=stream).tolist()
        held = len(own) // 3
        chosen = order[held:] if part == "base" else order[:held]
        own_stream = generator("stamps", seed, part, kind)
        for number in range(PASTED[part]):
            images.append(_pasted(own[chosen[number % len(chosen)]].image, size, own_stream))
    return Pool("stamps", normalised(np.stack(images)), _blocks(len(KINDS), PASTED[part]), KINDS)


def clothes(part: str, size: int, seed: int) -> Pool:
    """25 random test images of each class of Fashion-MNIST, bilinear to `size`, grey as three channels."""
    from shared.data.embedded import fashion_mnist

    images, labels = fashion_mnist(train=False)
    stream = generator("fashion-mnist", seed)
    places = []
    for label in range(10):
        own = torch.from_numpy(np.flatnonzero(labels == label))
        places.append(own[torch.randperm(len(own), generator=stream)[:PER_GARMENT]])
    pixels = torch.from_numpy(images[torch.cat(places).numpy()])[:, None].float()
    pixels = interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False)
    names = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
    return Pool("fashion-mnist", _normalised(pixels.expand(-1, 3, -1, -1)), _blocks(10, PER_GARMENT), names)


def furniture(part: str, size: int, seed: int) -> Pool:
    """Rendered icons of furniture on white, the class being the last word of the name."""
    images: dict[str, list[np.ndarray]] = {name: [] for name in FURNITURE}
    for path in sorted(fetch("furniture").glob("*.sh3f")):
        with zipfile.ZipFile(path) as archive:
            text = archive.read("PluginFurnitureCatalog.properties").decode("latin1")
            fields = dict(re.findall(r"^((?:icon|name)#\d+)=(.*)$", text, re.MULTILINE))
            for number in sorted(int(key.split("#")[1]) for key in fields if key.startswith("icon#")):
                word = fields.get(f"name#{number}", " ").strip().split(" ")[-1].lower()
                if word in images:
                    with Image.open(
                        io.BytesIO(archive.read(fields[f"icon#{number}"].strip().lstrip("/")))
                    ) as icon:
                        images[word].append(_on_white(icon, size))
    labels = torch.cat([torch.full((len(own),), place) for place, own in enumerate(images.values())])
    pixels = np.concatenate([np.stack(own) for own in images.values()])
    return Pool("furniture", normalised(pixels), labels, FURNITURE)


READERS: dict[str, Callable[[str, int, int], Pool]] = {
    "digits": digits,
    "grey-textures": grey_textures,
    "textures": fine_textures,
    "stamps": pasted_stamps,
    "fashion-mnist": clothes,
    "furniture": furniture,
}


def normalised(images: np.ndarray) -> Tensor:
    """uint8 (N, H, W, 3) as float32 (N, 3, H, W) by ImageNet's mean and standard deviation."""
    return _normalised(torch.from_numpy(images).permute(0, 3, 1, 2).float())


def _normalised(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (pixels / 255 - mean) / std


def _pasted(stamp: np.ndarray, size: int, stream: torch.Generator) -> np.ndarray:
    """One cut-out, its longer side 60 to 90 % of `size`, on a random crop: uint8 (size, size, 3)."""
    which, left, top, share = torch.rand(4, generator=stream, dtype=torch.float64).tolist()
    ground = textures.crops(BACKGROUNDS[int(which * len(BACKGROUNDS))], 1, size, stream)[0]
    image = Image.fromarray(stamp)
    scale = (0.6 + 0.3 * share) * size / max(image.size)
    image = image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BILINEAR)
    canvas = Image.fromarray(ground)
    place = (round(left * (size - image.width)), round(top * (size - image.height)))
    canvas.paste(image, place, image)
    return np.asarray(canvas)


def _on_white(icon: Image.Image, size: int) -> np.ndarray:
    image = icon.convert("RGBA")
    ground = Image.new("RGBA", image.size, "white")
    ground.alpha_composite(image)
    return np.asarray(ground.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))


def _blocks(classes: int, of_each: int) -> Tensor:
    return torch.arange(classes).repeat_interleave(of_each)
