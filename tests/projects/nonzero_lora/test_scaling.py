"""Exponents of the width in the parts of a step: the theory's, from trained layers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from projects.nonzero_lora import build
from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.config import AdapterConfig, Config
from projects.nonzero_lora.initialisation import lora_layers
from projects.nonzero_lora.scaling import fit_slope, step_parts
from shared.errors import UserError
from shared.training.config import compose
from shared.training.experiment import Interrupted, run_experiment


def config(*overrides: str) -> Config:
    layer = {
        "task": "width_scaling",
        "trainer": {"max_epochs": 1, "accelerator": "cpu", "devices": 1},
        "wandb": {"mode": "disabled"},
        "adapter": {"rank": 4, "alpha": 4, "targets": ["n*"]},
    }
    return compose(Config, layer, overrides=list(overrides))


def test_parts_add_up_to_the_change_of_the_output() -> None:
    torch.manual_seed(0)
    before, after = [(torch.randn(3, 20), torch.randn(15, 3)) for _ in range(2)]
    z = torch.randn(20)
    parts = step_parts(before, after, z, scale=0.7)
    change = 0.7 * (after[1] @ after[0] @ z - before[1] @ before[0] @ z)
    torch.testing.assert_close(sum(parts.values()), change, rtol=1e-5, atol=1e-4)


def test_fit_slope() -> None:
    widths = [10, 100, 1000]
    assert fit_slope(widths, [3 * n**-0.5 for n in widths]) == pytest.approx(-0.5)
    assert np.isnan(fit_slope(widths, [1.0, 0.0, 1.0]))


def slopes(folder: Path, *overrides: str) -> dict[str, float]:
    """Mean slopes over four seeds."""
    runs = [
        run_experiment(build, config(f"seed={s}", *overrides), folder / str(s), group="g", name="n")
        for s in range(4)
    ]
    return {part: float(np.mean([run[f"slope/{part}"] for run in runs])) for part in ("d1", "d2")}


def test_slopes_at_a_small_rate(tmp_path: Path) -> None:
    """Property 8: at a rate of 1/n, d1 is n^-1 from Init[A] and n^-1/2 from Init[AB]."""
    a = slopes(tmp_path / "a", "adapter.c_b=0")
    ab = slopes(tmp_path / "ab", "adapter.c_b=1")
    assert -1.1 <= a["d1"] <= -0.9
    assert -0.65 <= ab["d1"] <= -0.4
    assert -1.1 <= a["d2"] <= -0.8 and -1.1 <= ab["d2"] <= -0.8


def test_slopes_at_a_large_rate(tmp_path: Path) -> None:
    """At a rate of 1/sqrt(n) every part is of size one, from both starts."""
    for c_b in (0, 1):
        found = slopes(tmp_path / str(c_b), f"adapter.c_b={c_b}", "width_scaling.lr_exponent=-0.5")
        assert all(abs(slope) < 0.15 for slope in found.values())


@pytest.mark.parametrize("stop_after", [2, 5])
def test_resumed_equals_uninterrupted(stop_after: int, tmp_path: Path) -> None:
    """Also when it was stopped at its last step, which is the one that is measured."""
    settings = config("adapter.c_b=1", "width_scaling.widths=[16,32,64]")
    whole = run_experiment(build, settings, tmp_path / "whole", group="g", name="n")
    assert {"slope/d1", "slope/d3", "rms/d2/64"} <= set(whole)
    asked = iter([False] * (stop_after - 1) + [True])
    with pytest.raises(Interrupted):
        run_experiment(build, settings, tmp_path / "parts", group="g", name="n", stop=lambda: next(asked))
    parts = run_experiment(build, settings, tmp_path / "parts", group="g", name="n", stop=lambda: False)
    assert parts == whole


def test_inputs_move_with_the_module_but_are_not_saved() -> None:
    module = build(config("width_scaling.widths=[16,32]")).module
    signs = {name: value for name, value in module.named_buffers() if name[:2] in ("z_", "g_")}
    assert len(signs) == 2 * 2 * 4 and all(value.abs().eq(1).all() for value in signs.values())
    assert not set(signs) & set(module.state_dict())
    assert all(value.is_meta for name, value in module.to("meta").named_buffers() if name in signs)


@pytest.mark.parametrize(("c_b", "ratio"), [(1.0, 2.0), (0.0, 4.0)])
def test_halving_a_small_rate(c_b: float, ratio: float) -> None:
    """Property 9: B_1 (dA_2) Z halves from Init[AB], linear in the rate, and quarters from Init[A]."""
    sizes = []
    for lr in (1e-5, 5e-6):
        torch.manual_seed(4)
        n = 512
        model = nn.ModuleDict({"fc": nn.Linear(n, n, bias=False, dtype=torch.float64)})
        attach(model, AdapterConfig(rank=4, alpha=4, c_b=c_b, targets=["fc"]), 0)
        model.double()
        layer = dict(lora_layers(model))["fc"]
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        z, g = torch.randn(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
        optimizer = torch.optim.Adam([a, b], lr=lr, eps=1e-20)
        for _ in range(2):
            before = (a.detach().clone(), b.detach().clone())
            optimizer.zero_grad()
            (g @ model["fc"](z)).backward()
            optimizer.step()
        d1 = step_parts(before, (a.detach(), b.detach()), z, 1.0)["d1"]
        sizes.append(d1.square().mean().sqrt().item())
    assert sizes[0] / sizes[1] == pytest.approx(ratio, rel=0.05)


def test_one_width_has_no_slope() -> None:
    with pytest.raises(UserError, match="a slope needs two widths, found \\[64\\]"):
        build(config("width_scaling.widths=[64]"))
