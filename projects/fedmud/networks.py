"""The networks of the paper's experiments and a perceptron; the only biases are of batch normalisation."""

from __future__ import annotations

import itertools

from torch import nn

from shared.errors import UserError, suggest
from shared.training.seeding import generator

HIDDEN = 256  # of the perceptron


def block(channels: int, width: int, pool: bool) -> list[nn.Module]:
    """Convolution 3 x 3, batch normalisation, ReLU, and max pooling where `pool`."""
    layers = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return [*layers, nn.MaxPool2d(2)] if pool else layers


def cnn(channels: int, size: int, classes: int) -> nn.Sequential:
    """Four convolutions of 32, 64, 128 and 256, each pooled: 390,880 values at 28 x 28 x 1 and 10 classes."""
    widths = [channels, 32, 64, 128, 256]
    blocks = [layer for pair in itertools.pairwise(widths) for layer in block(*pair, pool=True)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(256 * (size // 16) ** 2, classes, bias=False))


def deep_cnn(channels: int, size: int, classes: int) -> nn.Sequential:
    """Ten convolutions, two each of 32, 64, 128, 256 and 512, then pooled: 4,719,328 values for CIFAR-10."""
    widths = [channels, 32, 32, 64, 64, 128, 128, 256, 256, 512, 512]
    pairs = enumerate(itertools.pairwise(widths))
    blocks = [layer for i, pair in pairs for layer in block(*pair, pool=i % 2 == 1)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(512 * (size // 32) ** 2, classes, bias=False))


def mlp(channels: int, size: int, classes: int) -> nn.Sequential:
    """Perceptron with two hidden layers of 256, the middle weight is 256 x 256."""
    inputs = channels * size**2
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, HIDDEN, bias=False),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN, bias=False),
        nn.ReLU(),
        nn.Linear(HIDDEN, classes, bias=False),
    )


NETWORKS = {"cnn": cnn, "deep_cnn": deep_cnn, "mlp": mlp}


def make(name: str, channels: int, size: int, classes: int, seed: int) -> nn.Sequential:
    """A network with its first weights, which everybody draws from the same seed.

    N(0, 0.01^2) in the convolutional networks; in the perceptron, which has no normalisation to undo so small
    a start, uniform in +- 1 / sqrt(inputs).

    Raises:
        UserError: a name that is not known, or images too small for the network's poolings.
    """
    if name not in NETWORKS:
        raise UserError(f"network takes {', '.join(NETWORKS)}; found {name!r}.{suggest(name, NETWORKS)}")
    least = {"cnn": 16, "deep_cnn": 32, "mlp": 1}[name]
    if size < least:
        raise UserError(f"network={name} takes images of {least} x {least} at least, found {size} x {size}.")
    network = NETWORKS[name](channels, size, classes)
    layers = [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for number, layer in enumerate(layers):
        stream = generator(seed, "weights", number)
        if name == "mlp":
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=stream)
        else:
            nn.init.normal_(layer.weight, 0, weight_std(name), generator=stream)
    return network


def weight_std(name: str) -> float:
    """Standard deviation of the first weights of the layers between the first and the last."""
    return (3 * HIDDEN) ** -0.5 if name == "mlp" else 0.01
