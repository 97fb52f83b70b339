"""Local training equals Lightning's own `Trainer.fit`, bit for bit, for modules that know nothing of it."""

import copy

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from shared.errors import UserError
from shared.federated.data import Batches
from shared.federated.errors import ClientError
from shared.federated.local import LocalTraining, train


class Base(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)


class EpochSchedule(Base):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class StepSchedule(Base):
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class EverySecondStep(Base):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 2}]


class Plateau(Base):
    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/mean", loss, on_epoch=True, on_step=False)
        return {"loss": loss}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=3.0)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "train/mean"}}


class ClosureTwice(Base):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.5, max_iter=3)


class OwnHooks(Base):
    """Every hook that could be forgotten changes the result."""

    def on_train_start(self):
        self.factor = 1.0

    def on_train_epoch_start(self):
        self.factor += self.current_epoch

    def on_train_batch_start(self, batch, batch_idx):
        self.factor *= 1.01 + 0.001 * batch_idx

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * self.factor, batch[1]]

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] + 0.01, batch[1]]

    def on_before_backward(self, loss):
        self.factor += 0.001 * float(loss)

    def on_after_backward(self):
        self.net[0].weight.grad.mul_(self.factor)

    def on_before_optimizer_step(self, optimizer):
        self.net[2].bias.grad.add_(0.01 * self.global_step)

    def on_before_zero_grad(self, optimizer):
        self.factor *= 0.999

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch + batch_idx)
        optimizer.step(closure=optimizer_closure)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.net[0].bias.grad.mul_(0.5)
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.factor += 0.01 * float(outputs["loss"])

    def on_train_epoch_end(self):
        with torch.no_grad():
            self.net[0].bias.mul_(0.9)

    def on_train_end(self):
        with torch.no_grad():
            self.net[2].bias.add_(self.factor)


class SkipsBatches(Base):
    def training_step(self, batch):
        return None if int(batch[1][0]) == 1 else F.cross_entropy(self.net(batch[0]), batch[1])


class StopsEpochs(Base):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 2 else None


class Manual(Base):
    """Two optimisers, two schedules, accumulation and clipping by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        with first.toggle_model():
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            first.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(first, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            first.step()
        if (batch_idx + 1) % 2 == 0:
            loss = F.mse_loss(self.net(batch[0]).sum(1), batch[1].float())
            second.zero_grad()
            self.manual_backward(loss)
            second.step()
        for schedule in self.lr_schedulers():
            schedule.step()
        self.log_dict({"step": float(self.global_step), "loss": loss})

    def configure_optimizers(self):
        pairs = []
        for part, rate in ((self.net[0], 0.5), (self.net[2], 0.2)):
            optimizer = torch.optim.SGD(part.parameters(), lr=rate, momentum=0.5)
            pairs.append((optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)))
        return [optimizer for optimizer, _ in pairs], [schedule for _, schedule in pairs]


class ManualClosure(Base):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()

        def closure():
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            return loss

        optimizer.step(closure=closure)


def batches():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(38, 5, generator=generator)
    return Batches(TensorDataset(x, (x.sum(1) > 0).long()), 8)


CASES = [
    (Base, {}),
    (Base, {"max_epochs": 3}),
    (Base, {"max_steps": 7, "max_epochs": 3}),
    (Base, {"accumulate_grad_batches": 2}),
    (Base, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}),
    (Base, {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}),
    (Base, {"precision": "bf16-mixed", "max_epochs": 2}),
    (EpochSchedule, {"max_epochs": 3}),
    (StepSchedule, {"max_epochs": 2}),
    (StepSchedule, {"max_epochs": 2, "accumulate_grad_batches": 2}),
    (EverySecondStep, {"max_epochs": 2}),
    (Plateau, {"max_epochs": 6}),
    (ClosureTwice, {"max_epochs": 2}),
    (OwnHooks, {"max_epochs": 2, "gradient_clip_val": 0.2}),
    (SkipsBatches, {"max_epochs": 2}),
    (StopsEpochs, {"max_epochs": 2}),
    (Manual, {"max_epochs": 2}),
    (ManualClosure, {"max_epochs": 2}),
]


@pytest.mark.parametrize(
    ("kind", "settings"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_equals_lightning(fed, kind, settings):
    torch.manual_seed(0)
    ours = kind()
    theirs = copy.deepcopy(ours)
    report = train(ours, batches(), LocalTraining(**settings), state={})
    trainer = fed.trainer(**settings)
    trainer.fit(theirs, batches())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert report.steps == trainer.global_step
    assert not torch.equal(ours.net[0].weight, kind_start(kind).net[0].weight)


def kind_start(kind):
    torch.manual_seed(0)
    return kind()


def test_float16_is_scaled_and_unscaled_before_clipping():
    torch.manual_seed(0)
    half, full = Base(), None
    full = copy.deepcopy(half)
    seen = []
    train(
        half,
        batches(),
        LocalTraining(precision="16-mixed", gradient_clip_val=1e9),
        state={},
        gradient=lambda grads, params: (
            seen.append(max(float(g.abs().max()) for g in grads.values())) or grads
        ),
    )
    train(full, batches(), LocalTraining(), state={})
    assert max(seen) < 10  # the scale is 65536
    assert torch.allclose(half.net[0].weight, full.net[0].weight, atol=0.02)


def test_a_surrounding_autocast_sees_new_weights_every_step():
    torch.manual_seed(0)
    inside = Base()
    alone = copy.deepcopy(inside)
    with torch.autocast("cpu", torch.bfloat16):
        train(inside, batches(), LocalTraining(), state={})
    train(alone, batches(), LocalTraining(precision="bf16-mixed"), state={})
    assert torch.equal(inside.net[0].weight, alone.net[0].weight)


def test_report_counts_steps_samples_rates_and_means():
    model = EpochSchedule()
    report = train(model, batches(), LocalTraining(max_epochs=2), state={})
    assert (report.steps, report.samples) == (10, 76)
    assert report.lr == pytest.approx(0.025)
    assert report.lr_sum == pytest.approx(5 * 0.05 + 5 * 0.025)
    assert 0 < report.metrics["train/loss"] < 3


def test_metric_objects_can_be_logged():
    class Measured(Base):
        def __init__(self):
            super().__init__()
            self.accuracy = MulticlassAccuracy(3, average="micro")

        def training_step(self, batch, batch_idx):
            logits = self.net(batch[0])
            self.accuracy(logits, batch[1])
            self.log("acc", self.accuracy)
            return F.cross_entropy(logits, batch[1])

    report = train(Measured(), batches(), LocalTraining(), state={})
    assert 0.3 < report.metrics["acc"] <= 1


def test_optimiser_state_is_reset_or_kept():
    def twice(**settings):
        torch.manual_seed(0)
        model, state = EpochSchedule(), {}
        for _ in range(2):
            train(model, batches(), LocalTraining(**settings), state=state)
        return model, state

    kept, state = twice(keep_optimizer=True)
    fresh, empty = twice()
    torch.manual_seed(0)
    straight = EpochSchedule()
    train(straight, batches(), LocalTraining(max_epochs=2), state={})
    assert torch.equal(kept.net[0].weight, straight.net[0].weight)
    assert not torch.equal(fresh.net[0].weight, straight.net[0].weight)
    assert empty == {} and state["optimizer"]["optimizers"][0]["state"][0]["step"] == 10


def test_kept_optimiser_state_is_not_changed_in_place():
    model, state = Base(), {}
    train(model, batches(), LocalTraining(keep_optimizer=True), state=state)
    before = copy.deepcopy(state["optimizer"])
    train(model, batches(), LocalTraining(keep_optimizer=True), state=dict(state))
    momentum = state["optimizer"]["optimizers"][0]["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, before["optimizers"][0]["state"][0]["momentum_buffer"])


def test_what_the_trainer_lacks_is_named():
    class Greedy(Base):
        def training_step(self, batch, batch_idx):
            assert not hasattr(self.trainer, "datamodule")
            return self.trainer.predict_loop

    with pytest.raises(
        UserError, match=r"Greedy uses self.trainer.predict_loop.*Override FederatedClient.fit"
    ):
        train(Greedy(), batches(), LocalTraining(), state={})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"configure_optimizers": lambda self: None}, "returned nothing"),
        ({"configure_optimizers": lambda self: "sgd"}, "Unknown configuration"),
        ({"training_step": lambda self, dataloader_iter: None}, "take a batch instead"),
    ],
)
def test_unusable_modules_are_explained(change, expected):
    model = type("Odd", (Base,), change)()
    with pytest.raises(UserError, match=expected):
        train(model, batches(), LocalTraining(), state={})


def test_unknown_precision_and_unlogged_monitor_are_explained():
    with pytest.raises(UserError, match="bf16-mixed"):
        train(Base(), batches(), LocalTraining(precision="8-bit"), state={})

    class Mute(Plateau):
        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

    with pytest.raises(UserError, match="watches 'train/mean', which training_step does not log"):
        train(Mute(), batches(), LocalTraining(), state={})


def test_loss_terms_need_automatic_optimisation():
    with pytest.raises(UserError, match="manual optimisation"):
        train(Manual(), batches(), LocalTraining(), state={}, extra_loss=lambda *_: torch.zeros(()))


def test_one_sample_and_batch_norm_are_explained():
    model = Base()
    model.net.insert(1, nn.BatchNorm1d(8))
    with pytest.raises(ClientError, match="one sample met batch normalisation"):
        train(model, [[torch.randn(1, 5), torch.zeros(1).long()]], LocalTraining(), state={})
