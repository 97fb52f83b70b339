"""Evaluation that leaves no trace, pooled from sufficient statistics."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule

from shared.federated.contract import batch_size
from shared.federated.payload import Reply
from shared.federated.recorder import Recorder


def run_validation(
    model: LightningModule, loader: Iterable[Any], step: str = "validation_step"
) -> tuple[dict[str, float], dict[str, float]]:
    """Sums and weights, by name, of what `step` logs: their ratio is the exact mean."""
    recorder = Recorder()
    logged_by = model.__dict__.get("log")
    recorder.attach(model)
    modes = {module: module.training for module in model.modules()}
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    run, count = getattr(model, step), 0
    takes_index = len(inspect.signature(run).parameters) > 1
    model.eval()
    try:
        with torch.no_grad():
            for index, batch in enumerate(loader):
                batch = move_data_to_device(batch, device)
                recorder.weight = float(batch_size(batch))
                count += int(recorder.weight)
                run(batch, index) if takes_index else run(batch)
        return recorder.totals(count)
    finally:
        for module, mode in modes.items():
            module.training = mode
        del model.log
        if logged_by is not None:
            model.log = logged_by


def pool(replies: Sequence[Reply]) -> dict[str, float]:
    """Two means of every metric: over all samples ("name") and over clients ("name/clients")."""
    names = sorted({name for reply in replies for name in reply.get("sums", {})})
    found: dict[str, float] = {}
    for name in names:
        pairs = [(r["sums"][name], r["weights"][name]) for r in replies if name in r.get("sums", {})]
        found[name] = sum(total for total, _ in pairs) / sum(weight for _, weight in pairs)
        found[f"{name}/clients"] = sum(total / weight for total, weight in pairs) / len(pairs)
    return found
