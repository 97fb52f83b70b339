"""What the shared code promises, on a GPU. Each check also runs with `accelerator="cpu"`, as in tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from shared.training.config import BaseConfig, base_layer, compose
from shared.training.experiment import Experiment, Interrupted, run_experiment
from shared.training.loader import ResumableLoader

STEPS = 24  # one epoch


def checks() -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    return [
        ("matmul", matmul),
        ("same_result_as_cpu", same_result_as_cpu),
        ("resume", resume),
        ("precisions", precisions),
    ]


class Sine(LightningModule):
    """A small network with dropout learns a sine; its inputs come from the loader, seeded by the run."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 1))

    def _loss(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.mse_loss(self.network(batch[0]), batch[0].sum(1, keepdim=True).sin())

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self._loss(batch)

    def test_step(self, batch: list[Tensor], index: int) -> None:
        self.log("test/loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> ResumableLoader:
        points = torch.randn(16 * STEPS, 8, generator=torch.Generator().manual_seed(1))
        return ResumableLoader(TensorDataset(points), 16, seed=1, shuffle=True)

    def test_dataloader(self) -> ResumableLoader:
        points = torch.randn(256, 8, generator=torch.Generator().manual_seed(2))
        return ResumableLoader(TensorDataset(points), 256)


def train(
    accelerator: str,
    *,
    dropout: float = 0.0,
    precision: str = "32-true",
    folder: Path | None = None,
    stop_after: int | None = None,
) -> tuple[float, Tensor]:
    """Loss on the test points and all weights (P,) after one epoch through the ordinary run.

    Raises:
        Interrupted: after `stop_after` steps, a checkpoint left in `folder`.
    """
    config = compose(
        BaseConfig,
        base_layer(),
        {
            "trainer": {"max_epochs": 1, "accelerator": accelerator, "precision": precision},
            "wandb": {"mode": "disabled"},
        },
    )
    made: list[Sine] = []

    def build(_: Any) -> Experiment:
        made.append(Sine(dropout))
        return Experiment(made[0])

    def stop() -> bool:
        return stop_after is not None and made[0].trainer.global_step >= stop_after

    with tempfile.TemporaryDirectory() as temporary:
        metrics = run_experiment(
            build, config, folder or Path(temporary), group="gpu_check", name=precision, stop=stop
        )
    weights = torch.cat([weight.detach().cpu().float().flatten() for weight in made[0].parameters()])
    return metrics["test/loss"], weights


def matmul(accelerator: str = "gpu") -> dict[str, float]:
    """Relative error of 1024^3 products against float64: float32 must be real float32, bfloat16 near 2^-8."""
    device = "cuda" if accelerator == "gpu" else accelerator
    stream = torch.Generator().manual_seed(0)
    left, right = (torch.randn(1024, 1024, generator=stream, dtype=torch.float64) for _ in range(2))
    exact = left @ right
    errors = {}
    for name, dtype, limit in (("float32", torch.float32, 1e-5), ("bfloat16", torch.bfloat16, 1e-2)):
        product = (left.to(device, dtype) @ right.to(device, dtype)).cpu().double()
        errors[name] = float((product - exact).norm() / exact.norm())
        assert errors[name] < limit, f"{name}: relative error {errors[name]:.2e}, expected below {limit:.0e}"
    return errors


def same_result_as_cpu(accelerator: str = "gpu") -> dict[str, float]:
    """Training without dropout ends where it ends on the CPU, up to rounding."""
    loss, weights = train(accelerator)
    reference_loss, reference = train("cpu")
    apart = float((weights - reference).norm() / reference.norm())
    assert apart < 1e-3, f"weights are {apart:.2e} apart (relative), expected below 1e-3"
    assert abs(loss - reference_loss) < 1e-3 * reference_loss, (
        f"losses: {loss} and {reference_loss} on the CPU"
    )
    return {"loss": loss, "loss_cpu": reference_loss, "weights_apart": apart}


def resume(accelerator: str = "gpu") -> dict[str, float]:
    """With dropout, a run stopped in mid-epoch and resumed ends bit for bit like an uninterrupted one."""
    loss, weights = train(accelerator, dropout=0.3)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            train(accelerator, dropout=0.3, folder=folder, stop_after=STEPS // 3)
        except Interrupted:
            pass
        else:
            raise AssertionError("the run was not interrupted")
        resumed_loss, resumed = train(accelerator, dropout=0.3, folder=folder)
    assert torch.equal(weights, resumed), f"weights differ by up to {(weights - resumed).abs().max():.2e}"
    return {"loss": loss, "loss_resumed": resumed_loss}


def precisions(accelerator: str = "gpu") -> dict[str, float]:
    """bf16-mixed really computes in another precision, and learns about as well as float32."""
    losses = {
        precision: train(accelerator, precision=precision)[0] for precision in ("32-true", "bf16-mixed")
    }
    full, mixed = losses["32-true"], losses["bf16-mixed"]
    assert mixed != full, "both precisions gave the same loss to the last bit"
    assert abs(mixed - full) < 0.1 * full, f"bf16-mixed ends at {mixed}, float32 at {full}"
    return losses
