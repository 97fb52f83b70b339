"""Merging, and the baselines: each at its own definition, written out here."""

import copy

import pytest
import torch
from torch import nn

from projects.nonzero_lora.adapters import attach, merge, trainable_parameters, unmerge
from projects.nonzero_lora.config import AdapterConfig
from projects.nonzero_lora.initialisation import base_weight, lora_layers
from shared.errors import UserError


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(21, 14), nn.Tanh(), nn.Linear(14, 9))


def adapted(**config) -> nn.Module:
    return attach(network(), AdapterConfig(**({"rank": 4, "alpha": 6.0, "targets": ["0", "2"]} | config)), 0)


def disturb(model: nn.Module) -> None:
    """As training would: every trained value moves."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)


@pytest.mark.parametrize("c_b", [0.0, 1.0])
@pytest.mark.parametrize("reset", [False, True])
def test_merge_and_unmerge(c_b: float, reset: bool) -> None:
    """Property 6."""
    model = adapted(c_b=c_b, reset=reset)
    disturb(model)
    x = torch.randn(6, 21)
    before = {name: base_weight(layer).clone() for name, layer in lora_layers(model)}
    expected = model(x)
    merge(model)
    for name, layer in lora_layers(model):
        product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        torch.testing.assert_close(base_weight(layer), before[name] + 1.5 * product, rtol=0, atol=1e-6)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    unmerge(model)
    for name, layer in lora_layers(model):
        torch.testing.assert_close(base_weight(layer), before[name], rtol=0, atol=1e-6)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    unmerge(model)  # of what is not merged changes nothing
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["dora", "pissa", "milora"])
def test_baselines_start_at_the_pretrained_output_and_merge(method: str) -> None:
    x = torch.randn(6, 21)
    expected = network()(x)
    model = adapted(method=method)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    disturb(model)
    moved = model(x)
    assert (moved - expected).abs().max() > 1e-2
    merge(model)
    torch.testing.assert_close(model(x), moved, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("method", "part"), [("pissa", slice(0, 4)), ("milora", slice(-4, None))])
def test_singular_directions(method: str, part: slice) -> None:
    """PiSSA trains the largest, MiLoRA the smallest singular directions of W."""
    weight = network()[0].weight.detach()
    u, s, vt = torch.linalg.svd(weight, full_matrices=False)
    layer = dict(lora_layers(adapted(method=method)))["0"]
    product = 1.5 * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(product, u[:, part] * s[part] @ vt[part], rtol=0, atol=1e-5)
    torch.testing.assert_close(base_weight(layer) + product, weight, rtol=0, atol=1e-5)


def test_rslora_scales_by_the_root_of_the_rank() -> None:
    layer = dict(lora_layers(adapted(method="rslora", c_b=1.0)))["0"]
    assert layer.scaling["default"] == pytest.approx(6.0 / 2)
    base = network()[0]
    x = torch.randn(5, 21)
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(layer(x), base(x) + 3.0 * x @ (b @ a).T, rtol=0, atol=1e-5)


def test_dora_has_magnitudes_and_no_noise() -> None:
    model = adapted(method="dora")
    assert trainable_parameters(model) == 4 * (21 + 14) + 4 * (14 + 9) + 14 + 9
    with pytest.raises(UserError, match="brings its own start"):
        adapted(method="dora", c_b=1.0)


@pytest.mark.parametrize(("targets", "expected"), [(["a*"], ["a"]), (["a"], ["a", "b.a"])])
def test_only_the_matched_layers_are_adapted(targets: list[str], expected: list[str]) -> None:
    """peft's own rule would add b.a to a, and the embedding c.a to both."""
    nested = nn.ModuleDict({"a": nn.Linear(6, 6)})
    tables = nn.ModuleDict({"a": nn.Embedding(6, 6)})
    model = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nested, "c": tables})
    attach(model, AdapterConfig(rank=2, targets=targets), 0)
    assert [name for name, _ in lora_layers(model)] == expected
    assert trainable_parameters(model) == len(expected) * 2 * (6 + 6)


def test_full_trains_every_weight() -> None:
    model = adapted(method="full")
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert trainable_parameters(model) == sum(p.numel() for p in copy.deepcopy(network()).parameters())
