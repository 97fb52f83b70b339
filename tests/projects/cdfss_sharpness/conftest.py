"""Small episodes and segmenters for all tests of this paper."""

from types import SimpleNamespace

import pytest
import torch

from projects.cdfss_sharpness.config import Config
from projects.cdfss_sharpness.data.episodes import Episode
from projects.cdfss_sharpness.segmenter import segmenter
from shared.training.config import base_layer, compose

SMALL = {
    "episodes": {"source": "digits", "size": 24, "train": 8, "batch": 2, "test": 4},
    "encoder": {"name": "convnet", "weights": "none", "frozen": 0, "widths": [4, 6, 8, 12]},
    "lcm": {"grid": 3},
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "wandb": {"mode": "disabled"},
    "pictures": {"queries": 0},
}


def config(*layers, **episodes):
    return compose(Config, base_layer(), SMALL, *layers, {"episodes": episodes})


def net(*layers, seed=0):
    torch.manual_seed(seed)
    return segmenter(config(*layers))


def episode(batch=2, shots=1, size=24, seed=0):
    """Random pixels; a square is the foreground, a corner is ignored."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.zeros(batch, shots + 1, size, size, dtype=torch.uint8)
    labels[..., size // 4 : size // 2, size // 3 : 2 * size // 3] = 1
    labels[..., -3:, -3:] = 255
    images = torch.randn(batch, shots + 1, 3, size, size, generator=stream)
    images = images + 2 * (labels == 1)[:, :, None]
    return Episode(images[:, 1:], labels[:, 1:], images[:, 0], labels[:, 0], torch.zeros(batch).long())


@pytest.fixture(scope="session")
def small():
    return SimpleNamespace(config=config, net=net, episode=episode, layer=SMALL)
