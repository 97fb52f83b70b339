"""How the parts of one Adam step of a LoRA layer grow with the width n (the paper's gamma calculus).

With Z_B = (alpha / r) B A Z the output of the adapter for one input Z, step t changes it by d1 + d2 + d3,
where, each times alpha / r, d1 = B_{t-1} (dA) Z, d2 = (dB) A_{t-1} Z and d3 = (dB) (dA) Z. With a rate of
n^gamma and entries of A0, B0 of size n^(-1/2) the theory says d1 = Theta(n^(2 gamma + 1)) from B0 = 0 and
Theta(n^(max(-1/2, gamma) + gamma + 1)) from a random B0: the small-rate robustness of Init[AB].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.initialisation import lora_layers
from shared.errors import UserError
from shared.training.loader import ResumableLoader
from shared.training.logging import record
from shared.training.seeding import generator

EPS = 1e-20  # of Adam: gradients shrink with the width, and 1e-8 would end the scale-free step assumed here
PARTS = ("d1", "d2", "d3")

Factors = tuple[Tensor, Tensor]  # A (r, n), B (m, r)


def step_parts(before: Factors, after: Factors, z: Tensor, scale: float) -> dict[str, Tensor]:
    """d1, d2, d3 (m) of a step that took the factors from `before` to `after`, for one input z (n)."""
    (a, b), d_a, d_b = before, after[0] - before[0], after[1] - before[1]
    return {"d1": scale * b @ (d_a @ z), "d2": scale * d_b @ (a @ z), "d3": scale * d_b @ (d_a @ z)}


def fit_slope(widths: list[int], sizes: list[float]) -> float:
    """Exponent of n in `sizes`: least-squares slope of log size over log n; nan when a size is zero."""
    if min(sizes) <= 0:
        return float("nan")
    return float(np.polyfit(np.log(widths), np.log(sizes), 1)[0])


class WidthScaling(LightningModule):
    """LoRA layers of every width, all trained side by side with Adam at their own rate n^gamma.

    The loss of a layer is linear, <g, Y> with a fixed random g of entries +-1, and there is one input of
    entries +-1, so that normalised gradients have entries of size one, aligned with the input. One layer's
    part can nearly cancel, so the size of a part is its root mean square over the `replicas` of a width.

    Logs `rms/<part>/<n>` and `slope/<part>` of the last step.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config, self.widths = config, list(config.width_scaling.widths)
        if len(set(self.widths)) < 2:
            raise UserError(f"width_scaling.widths: a slope needs two widths, found {self.widths}.")
        self.names = [f"n{n}_{k}" for n in self.widths for k in range(config.width_scaling.replicas)]
        self.layers = nn.ModuleDict({name: nn.Linear(n, n, bias=False) for name, n in self._sizes()})
        attach(self.layers, config.adapter, config.seed)
        for name, n in self._sizes():
            for vector in ("z", "g"):  # not saved: they follow from the seed
                signs = random_signs(n, vector, name, config.seed)
                self.register_buffer(f"{vector}_{name}", signs, persistent=False)

    def training_step(self, batch: Tensor, index: int) -> None:
        optimizer = self.optimizers()
        before = self.factors()
        loss = sum(
            self.get_buffer(f"g_{name}") @ self.layers[name](self.get_buffer(f"z_{name}"))
            for name in self.names
        )
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        if self.trainer.global_step == self.trainer.estimated_stepping_batches:
            # In the step itself: a run stopped right after it has no other batch to make up for it.
            self.record_sizes(before, self.factors())

    def record_sizes(self, before: dict[str, Factors], after: dict[str, Factors]) -> None:
        """Log the sizes of the parts of the step from `before` to `after`, and their exponents."""
        scale = self.config.adapter.alpha / self.config.adapter.rank
        squares = {part: dict.fromkeys(self.widths, 0.0) for part in PARTS}
        for name, n in self._sizes():
            parts = step_parts(before[name], after[name], self.get_buffer(f"z_{name}"), scale)
            for part, value in parts.items():
                squares[part][n] += value.square().mean().item() / self.config.width_scaling.replicas
        for part, by_width in squares.items():
            sizes = {n: square**0.5 for n, square in by_width.items()}
            record(self, {f"slope/{part}": fit_slope(self.widths, list(sizes.values()))})
            record(self, {f"rms/{part}/{n}": size for n, size in sizes.items()})

    def factors(self) -> dict[str, Factors]:
        """A copy of every layer's A and B, by name."""
        return {
            name: tuple(getattr(layer, f)["default"].weight.detach().clone() for f in ("lora_A", "lora_B"))
            for name, layer in lora_layers(self.layers)
        }

    def configure_optimizers(self) -> torch.optim.Optimizer:
        exponent = self.config.width_scaling.lr_exponent
        groups = [
            {"params": [p for p in self.layers[name].parameters() if p.requires_grad], "lr": n**exponent}
            for name, n in self._sizes()
        ]
        return torch.optim.Adam(groups, betas=tuple(self.config.optimizer.betas), eps=EPS)

    def _sizes(self) -> list[tuple[str, int]]:
        return [(name, int(name[1:].partition("_")[0])) for name in self.names]


class Steps(LightningDataModule):
    """A data set of `count` empty batches: the instrument brings its own input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def train_dataloader(self) -> DataLoader:
        return ResumableLoader(torch.zeros(self.count, 1), 1)


def random_signs(n: int, *stream: Any) -> Tensor:
    """(n) of +-1."""
    return torch.randint(0, 2, (n,), generator=generator(n, *stream)).float() * 2 - 1
