"""Training: SAM, schedule, curve, resuming, learning."""

import csv

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from projects.cdfss_sharpness import build
from projects.cdfss_sharpness.measures import loss_increase, noise
from projects.cdfss_sharpness.module import LoEC
from projects.cdfss_sharpness.sam import SAM
from shared.errors import UserError
from shared.training.experiment import Interrupted, run_experiment
from shared.training.seeding import generator


def run(config, folder, **more):
    return run_experiment(build, config, folder, group="test", name="test", **more)


def test_sam_against_its_definition():
    """theta - lr (grad L at theta + rho g / ||g||), the disturbance in one part of theta only."""
    low, high = nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([0.5]))

    def loss(a, b):
        return (a**4).sum() * b.square().sum() + a.prod() * b.sum()

    a, b = (p.detach().clone().requires_grad_() for p in (low, high))
    g = torch.autograd.grad(loss(a, b), a)[0]
    moved = (a + 0.1 * g / g.norm()).detach().requires_grad_()
    wanted = [
        p - 0.01 * d for p, d in zip((a, b), torch.autograd.grad(loss(moved, b), (moved, b)), strict=True)
    ]
    optimizer = SAM([low, high], [low], 0.1, lr=0.01)
    calls = []

    def closure():
        optimizer.zero_grad()
        value = loss(low, high)
        value.backward()
        calls.append(value.item())
        return value

    first = loss(low, high).item()
    returned = optimizer.step(closure)
    assert len(calls) == 2 and returned.item() == first == calls[0] < calls[1]
    torch.testing.assert_close([low.detach(), high.detach()], [w.detach() for w in wanted])


def test_sam_needs_weights_and_a_closure(small):
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match="no low-level weight that learns"):
        SAM([weight], [], 0.05, lr=0.1)
    with pytest.raises(UserError, match="16-mixed"):
        SAM([weight], [weight], 0.05, lr=0.1).step()
    with pytest.raises(UserError, match="above 0"):
        SAM([weight], [weight], 0.0, lr=0.1)
    module = LoEC(small.config({"encoder": {"frozen": 2}}), [("inverted", 5)])
    assert module.low_level(2) == []


@pytest.mark.parametrize(
    "layer",
    [
        {"sam": {"rho": 0.05}, "lem": {"kind": "none"}},
        {"lem": {"kind": "mixstyle"}},
        {"lem": {"kind": "random_conv", "stage": 1}},
        {"head": {"name": "prototype"}, "lem": {"match_rms": True}},
        {"head": {"refine": True}, "lcm": {"beta": "adaptive", "on": "logit"}},
        {"encoder": {"frozen": 2, "depth": 2}, "episodes": {"shots": 5}},
    ],
)
def test_every_arm_runs(small, layer, tmp_path):
    found = run(small.config(layer), tmp_path)
    for side in ("with_lcm", "without_lcm"):
        for target in ("inverted", "textured", "noisy", "mean"):
            assert 0 <= found[f"{side}/{target}"] <= 100
    assert found["miou/mean"] == found["with_lcm/mean"]


def test_lcm_switched_off_is_the_baseline(small, tmp_path):
    on = run(small.config(), tmp_path / "on")
    off = run(small.config({"lcm": {"enabled": False}}), tmp_path / "off")
    assert off["miou/mean"] == off["without_lcm/mean"] == on["without_lcm/mean"]
    assert on["miou/mean"] == on["with_lcm/mean"] == off["with_lcm/mean"]
    none = run(small.config({"lcm": {"weight": 0.0}}), tmp_path / "none")
    assert none["miou/mean"] == on["without_lcm/mean"]


def test_rate_falls_at_one_and_two_thirds(small, tmp_path):
    config = small.config({"episodes": {"train": 24}})
    rates = []
    real = LoEC.training_step

    def step(self, *arguments):
        rates.append(self.optimizers().param_groups[0]["lr"])
        return real(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoEC, "training_step", step)
        run(config, tmp_path)
    assert rates == pytest.approx([1e-3] * 4 + [1e-4] * 4 + [1e-5] * 4)


def test_curve_peak_and_drop(small, tmp_path):
    found = run(small.config({"trainer": {"val_check_interval": 2}}, train=16), tmp_path)
    with (tmp_path / "history.csv").open() as file:
        rows = [(row["name"], float(row["value"])) for row in csv.DictReader(file)]
    curve = [value for name, value in rows if name == "curve/without_lcm/mean"]
    assert len(curve) == 4
    assert found["peak/without_lcm/mean"] == pytest.approx(max(curve))
    assert found["drop/without_lcm/mean"] == pytest.approx(max(curve) - curve[-1], abs=1e-5)
    assert found["without_lcm/mean"] == pytest.approx(curve[-1])  # the last weights, not the best


def test_interrupted_and_resumed_equals_uninterrupted(small, tmp_path):
    config = small.config({"trainer": {"val_check_interval": 2}, "sharpness": {"episodes": 4}}, train=16)
    whole = run(config, tmp_path / "whole")
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 5

    with pytest.raises(Interrupted):
        run(config, tmp_path / "parts", stop=stop)
    again = run(config, tmp_path / "parts")
    assert again == whole


def test_it_learns(small, tmp_path):
    """Digits it never saw, under noise it never saw; a random network stays far below."""
    layer = {
        "episodes": {"train": 1280, "batch": 8, "size": 32, "targets": ["noisy"], "test": 40},
        "encoder": {"widths": [8, 16, 24, 32]},
        "lcm": {"grid": 4},
        "optimizer": {"lr": 3e-2},
    }
    trained = run(small.config(layer), tmp_path / "trained")
    random = run(small.config(layer, {"optimizer": {"lr": 1e-9}}), tmp_path / "random")
    assert trained["without_lcm/mean"] > random["without_lcm/mean"] + 15


def test_noise_has_its_size():
    maps = torch.randn(2, 4, 40, 40) * torch.tensor([1.0, 20.0])[:, None, None, None]
    added = noise(0.5, torch.Generator().manual_seed(0))(maps) - maps
    ratio = added.square().mean((1, 2, 3)).sqrt() / maps.square().mean((1, 2, 3)).sqrt()
    torch.testing.assert_close(ratio, torch.full((2,), 0.5), atol=0.02, rtol=0)


def test_loss_increase(small):
    config = small.config(train=8)
    experiment = build(config)
    module = experiment.module.eval()
    data = experiment.datamodule.heldout(6, 1, 24)
    none = loss_increase(module, data, [0.0], 1, 4, seed=0)
    assert all(
        value == pytest.approx(0, abs=1e-6) for name, value in none.items() if name != "sharpness/clean"
    )
    assert none["sharpness/clean"] > 0
    found = loss_increase(module, data, [0.5, 2.0], 2, 4, seed=0)
    assert found["sharpness/stage2"] == pytest.approx(
        (found["sharpness/stage2/0.5"] + found["sharpness/stage2/2"]) / 2
    )
    low = (found["sharpness/stage1"] + found["sharpness/stage2"]) / 2
    assert found["sharpness/low"] == pytest.approx(low)
    assert found == loss_increase(module, data, [0.5, 2.0], 2, 4, seed=0)


@pytest.mark.parametrize("stage", ["stage1", "stage3"])
def test_loss_increase_against_a_hook(small, stage):
    """Noise added by a hook of torch on the stage itself, query first."""
    experiment = build(small.config(train=8))
    module = experiment.module.eval()
    data = experiment.datamodule.heldout(4, 1, 24)
    found = loss_increase(module, data, [2.0], 1, 4, seed=3)
    episode = next(iter(DataLoader(data, 4)))
    with torch.no_grad():
        clean = module.query_loss(episode)
        add = noise(2.0, generator(3, "noise", stage, 2.0, 0, 0))
        handle = module.segmenter.encoder.stages[stage].register_forward_hook(lambda m, i, out: add(out))
        noisy = module.query_loss(episode)
        handle.remove()
    assert found[f"sharpness/{stage}/2"] == pytest.approx(float(noisy - clean), abs=1e-5)
    assert abs(found[f"sharpness/{stage}/2"]) > 1e-4


def test_likeness_and_pictures(small, tmp_path):
    import numpy as np

    layer = {"sharpness": {"episodes": 4, "sizes": [1.0]}, "pictures": {"queries": 1}}
    found = run(small.config(layer), tmp_path)
    for stage in (1, 2, 3, 4):
        each = [found[f"cka/stage{stage}/{t}"] for t in ("inverted", "textured", "noisy")]
        assert (
            found[f"cka/stage{stage}"] == pytest.approx(sum(each) / 3)
            and 0 <= min(each) <= max(each) <= 1.0001
        )
    with np.load(tmp_path / "artifacts" / "examples.npz") as saved:
        assert saved["query"].shape == (3, 3, 24, 24) and saved["calibrated"].shape == (3, 24, 24)
    with np.load(tmp_path / "artifacts" / "mixed.npz") as saved:
        assert saved["enhanced"].shape == saved["convolved"].shape == (4, 3, 24, 24)


def test_overfits_one_batch(small):
    net = small.net({"lem": {"kind": "none"}, "encoder": {"widths": [8, 8, 16, 16]}}).train()
    from projects.cdfss_sharpness.losses import episode_loss

    episode = small.episode(batch=2, size=24)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        matched = net(episode.support, episode.support_labels, episode.query)
        loss = episode_loss(matched, episode.support_labels, episode.query_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
