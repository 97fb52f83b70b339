"""FedWSQ on a GPU: codes as on a CPU, and rounds of the paper's network in 16-bit mixed precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.utils.data import TensorDataset

from projects.fedwsq.baselines.fedacg import FedACG
from projects.fedwsq.baselines.feddyn import FedDyn
from projects.fedwsq.baselines.fedhq import FedHQ
from projects.fedwsq.danuq import DANUQ, pattern
from projects.fedwsq.module import FedWSQ, LocalClassifier
from projects.fedwsq.networks import ConvNet, resnet18
from projects.fedwsq.weight_standardization import standardize_all
from shared.federated.codecs import Context, chain
from shared.federated.data import FederatedData
from shared.federated.local import LocalTraining
from shared.federated.module import FederatedModule
from shared.federated.partition import iid
from shared.federated.payload import Payload

DATA = {"images": 200, "side": 32}


def checks() -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    return [
        ("codes_as_on_a_cpu", codes_as_on_a_cpu),
        ("methods_train", methods_train),
        ("paper_rounds", paper_rounds),
    ]


def codes_as_on_a_cpu(device: str = "cuda") -> dict[str, Any]:
    """The message of a model that lives on the device has the bytes of the same model on the CPU."""
    w = torch.randn(64, 32, 3, 3, generator=torch.Generator().manual_seed(0))
    update = 0.01 * torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
    inbox = Payload(model={"w": w}, scales={"w": torch.tensor(0.01)})
    codec = chain(DANUQ(4, only=pattern(["w"])))
    messages = [
        codec.encode(Payload(model={"w": (w + update).to(where)}), Context(inbox))
        for where in ("cpu", device)
    ]
    assert messages[0] == messages[1]
    return {"bytes": len(messages[0])}


def methods_train(device: str = "cuda") -> dict[str, Any]:
    """Server arithmetic between a model on the device and replies on the CPU."""
    made = {
        "fedwsq": lambda net: FedWSQ(net, bits=2),
        "fedacg": lambda net: FedACG(net, acceleration=0.85, mu=1e-3),
        "feddyn": lambda net: FedDyn(net, alpha=0.1),
        "fedhq": lambda net: FedHQ(net, quantizer_name="qsgd", bits=4),
    }
    found = {}
    for name, make in made.items():
        torch.manual_seed(0)
        net = standardize_all(ConvNet(3, 10, (8, 8, 8), (2, 2, 2), 2), 1e-3)
        module = rounds(make(LocalClassifier(net, lr=0.1)), device, 2)
        values = torch.cat([v.reshape(-1) for v in module.model.state_dict().values()])
        assert values.isfinite().all(), name
        found[name] = float(values.norm())
    return found


def paper_rounds(device: str = "cuda") -> dict[str, Any]:
    """ResNet-18, five clients a round, 16-bit mixed precision: finite, and how long a round takes."""
    torch.manual_seed(0)
    net = standardize_all(resnet18(3, 10), 1e-3)
    training = LocalTraining(max_epochs=1, gradient_clip_val=10.0, precision="16-mixed")
    module = FedWSQ(LocalClassifier(net, lr=0.1, decay=0.998), bits=4, training=training)
    started = time.monotonic()
    rounds(module, device, 2)
    assert all(v.isfinite().all() for v in module.model.state_dict().values())
    assert all(float(s) > 1e-3 for s in module.scales.values()), module.scales
    return {"seconds_a_round": (time.monotonic() - started) / 2}


def rounds(module: FederatedModule, device: str, count: int) -> FederatedModule:
    """`count` rounds of five clients on noise."""
    stream = torch.Generator().manual_seed(2)
    images = torch.randn(DATA["images"], 3, DATA["side"], DATA["side"], generator=stream)
    labels = torch.randint(10, (DATA["images"],), generator=stream)
    data = FederatedData(
        TensorDataset(images, labels), iid(len(labels), 5, seed=0), rounds=count, batch_size=20
    )
    plain = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = Trainer(
        accelerator="gpu" if device == "cuda" else device,
        devices=1,
        max_epochs=1,
        limit_val_batches=0,
        **plain,
    )
    trainer.fit(module, datamodule=data)
    return module
