"""What a federation is asked in the end: bytes of its uplinks, sharpness of its model."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset, Subset

from projects.fedwsq.danuq import quantised_names
from projects.fedwsq.hessian import top_eigenvalue_of
from shared.federated.ledger import Ledger
from shared.training.logging import record
from shared.training.seeding import generator

GROUPS = ("model", "scales", "codes")


def uplink(ledger: Ledger, model: LightningModule, phase: str = "fit") -> dict[str, float]:
    """How many bytes the replies took, from the ledger.

    - `uplink/ratio`: bytes of the model in float32 over those of what replaced it, scales included;
    - `uplink/ratio_quantised`: the same for the convolutions that a quantiser acts on;
    - `uplink/bits`: bits a parameter;   `uplink/kb`: a whole message with everything, in 1,000 bytes.
    """
    messages = sum(1 for row in ledger.rows if row[2] == 1 and ledger.phases[row[1]] == phase)
    if not messages:
        return {}
    sent = ledger.by("name", direction="up", phase=phase)
    names, held = set(quantised_names(model)), model.state_dict()
    ours = {entry: size for entry, size in sent.items() if entry.split("/")[0] in GROUPS}
    packed = {entry: size for entry, size in ours.items() if entry.split("/")[1] in names}
    values = sum(value.numel() for value in held.values())
    quantised = sum(held[name].numel() for name in names)
    return {
        "uplink/ratio": 4 * values * messages / sum(ours.values()),
        "uplink/ratio_quantised": 4 * quantised * messages / sum(packed.values()),
        "uplink/bits": 8 * sum(ours.values()) / (values * messages),
        "uplink/kb": sum(sent.values()) / messages / 1000,
    }


class Uplink(Callback):
    """Writes `uplink` into the run's metrics when training ends."""

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        record(module, uplink(module.ledger, module.model))


class Sharpness(Callback):
    """Writes `hessian/top`: the top eigenvalue on a fixed seeded part of the training images."""

    def __init__(self, dataset: Dataset, count: int, seed: int) -> None:
        import torch

        places = torch.randperm(len(dataset), generator=generator(seed, "hessian"))[:count]
        self.part, self.seed = Subset(dataset, places.tolist()), seed

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        images, labels = next(iter(DataLoader(self.part, batch_size=len(self.part))))
        value = top_eigenvalue_of(
            module.model,
            images.to(module.device),
            labels.to(module.device),
            generator=generator(self.seed, "hessian", "direction"),
        )
        record(module, {"hessian/top": value})
