"""Layers whose weight is, or is moved by, a matrix of small factors; and how a network gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from projects.fedmud.decomposition import Form, fit_ratio
from shared.errors import UserError

FormOf = Callable[[int, int, float], Form]  # (rows, columns, ratio) -> form


class Decomposed(nn.Module):
    """Weight W + Delta(factors), or Delta(factors) alone.

    Args:
        form: of Delta.
        shape: of the weight, (O, I, k, k) or (out, in).
        weight: the frozen W; None: the factors are the whole weight.
    """

    def __init__(self, form: Form, shape: Sequence[int], weight: Tensor | None) -> None:
        super().__init__()
        self.form, self.shape = form, tuple(shape)
        self.register_buffer("weight", None if weight is None else weight.detach().clone())
        for name, size in form.trained.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))
        for name, size in form.frozen.items():
            self.register_buffer(name, torch.zeros(size))

    def factors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in (*self.form.trained, *self.form.frozen)}

    def delta(self) -> Tensor:
        """Delta in the weight's shape."""
        return self.form(self.factors()).view(self.shape)

    def effective(self) -> Tensor:
        """The weight that the layer computes with."""
        return self.delta() if self.weight is None else self.weight + self.delta()

    @torch.no_grad()
    def restart(self, *stream: int | str) -> None:
        """All factors anew from the random stream of that name."""
        for name, value in self.form.start(*stream).items():
            getattr(self, name).copy_(value)

    @torch.no_grad()
    def merge(self) -> None:
        """W <- W + Delta. The factors stay; `restart` them."""
        self.weight += self.delta()


class DecomposedLinear(Decomposed):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.effective())


class DecomposedConv2d(Decomposed):
    def __init__(self, form: Form, weight: Tensor, base: Tensor | None, like: nn.Conv2d) -> None:
        super().__init__(form, weight.shape, base)
        self.settings = {"stride": like.stride, "padding": like.padding, "dilation": like.dilation}

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.effective(), **self.settings)


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """(p, q): (out, in) of a linear layer, (O k, I k) of a convolution (O, I, k, k)."""
    if weight.dim() == 2:
        return weight.shape[0], weight.shape[1]
    out, into, height, width = weight.shape
    return out * height, into * width


def decomposable(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Convolutions and linear layers in module order, without the first and the last.

    Raises:
        UserError: a grouped convolution, or fewer than three such layers.
    """
    found = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    if len(found) < 3:
        raise UserError(
            f"the first and the last layer stay dense, so at least three are needed; found {len(found)}."
        )
    for name, module in found[1:-1]:
        if isinstance(module, nn.Conv2d) and module.groups != 1:
            raise UserError(f"'{name}' is a grouped convolution; only ordinary ones can be decomposed.")
    return found[1:-1]


def decompose(network: nn.Module, form_of: FormOf, ratio: float, *, base: bool) -> nn.Module:
    """Replace the layers between the first and the last, in place; all that is trained is `ratio` of all.

    Args:
        form_of: (rows, columns, ratio) -> the form of a layer.
        base: whether the weights stay, frozen, below the factors (MUD); else the factors replace them.

    Biases of replaced layers are dropped. The factors are 0 until `restart`.
    """
    layers = decomposable(network)
    shapes = [matrix_shape(layer.weight) for _, layer in layers]
    dense = sum(p.numel() for p in network.parameters()) - sum(
        p.numel() for _, layer in layers for p in layer.parameters()
    )
    for (name, layer), form in zip(layers, fit_ratio(shapes, dense, form_of, ratio), strict=True):
        weight = layer.weight if base else None
        if isinstance(layer, nn.Conv2d):
            new: Decomposed = DecomposedConv2d(form, layer.weight, weight, layer)
        else:
            new = DecomposedLinear(form, layer.weight.shape, weight)
        parent, _, last = name.rpartition(".")
        setattr(network.get_submodule(parent), last, new)
    return network


def decomposed_layers(network: nn.Module) -> Iterator[tuple[str, Decomposed]]:
    """(name, layer) in module order."""
    return ((name, m) for name, m in network.named_modules() if isinstance(m, Decomposed))


def restart(network: nn.Module, seed: int) -> None:
    """All factors of all layers anew from one seed; each layer draws from a stream of its own."""
    for number, (_, layer) in enumerate(decomposed_layers(network)):
        layer.restart(seed, "layer", number)


def merge(network: nn.Module) -> None:
    """W <- W + Delta in every layer."""
    for _, layer in decomposed_layers(network):
        layer.merge()


def trained_values(network: nn.Module) -> int:
    """How many values are trained, hence sent in each direction (without running statistics)."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)
