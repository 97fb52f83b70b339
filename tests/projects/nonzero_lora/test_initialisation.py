"""The starts of LoRA against peft's default, their statistics, first gradients, and how layers are found."""

import copy
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch import nn
from transformers import GPT2Config, GPT2Model

from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.config import AdapterConfig
from projects.nonzero_lora.initialisation import (
    INIT_A,
    INIT_AB,
    INIT_AB_RESET,
    INIT_B,
    InitScheme,
    initialise,
    lora_layers,
    match_layers,
)
from shared.errors import UserError

SIZES = [(5, 7), (33, 16), (16, 50)]  # (in, out), none a power of two on both sides


def one_layer(n: int, m: int, scheme: InitScheme, rank: int = 3, seed: int = 0, dtype=torch.float32):
    """A model of one layer "fc" with a started adapter, and the pretrained weight (m, n)."""
    torch.manual_seed(1)
    model = nn.Sequential()
    model.add_module("fc", nn.Linear(n, m, dtype=dtype))
    weight = model.fc.weight.detach().clone()
    attach(model, adapter(scheme, rank=rank, targets=["fc"]), seed)
    return model, weight


def adapter(scheme: InitScheme, **more) -> AdapterConfig:
    return AdapterConfig(c_a=scheme.c_a, c_b=scheme.c_b, reset=scheme.reset, alpha=6.0, **more)


def factors(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    layer = dict(lora_layers(model))["fc"]
    return layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight.detach()


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("reset", [False, True])
def test_forward_and_backward_are_those_of_plain_matrix_products(n: int, m: int, reset: bool) -> None:
    model, weight = one_layer(n, m, InitScheme(0.7, 1.3, reset))
    a, b = (factor.clone().requires_grad_() for factor in factors(model))
    x = torch.randn(4, 3, n)
    start = weight - 2.0 * (b @ a).detach() if reset else weight  # alpha / rank = 6 / 3
    expected = x @ (start + 2.0 * b @ a).T + model.fc.base_layer.bias.detach()
    output = model(x)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    target = torch.randn_like(output)
    (output - target).square().mean().backward()
    (expected - target).square().mean().backward()
    layer = dict(lora_layers(model))["fc"]
    torch.testing.assert_close(layer.lora_A["default"].weight.grad, a.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(layer.lora_B["default"].weight.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert layer.get_base_layer().weight.grad is None


def test_init_a_is_pefts_default() -> None:
    """Property 1: the very numbers that peft's initialiser gives for the same generator, and B at zero."""
    from shared.training.seeding import generator

    model, _ = one_layer(50, 20, INIT_A, rank=8, seed=5)
    a, b = factors(model)
    expected = torch.empty(8, 50)
    nn.init.kaiming_uniform_(expected, a=math.sqrt(5), generator=generator("lora", 5, "fc"))
    torch.testing.assert_close(a, expected, rtol=1e-6, atol=0)
    assert not b.any()

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(2000, 400))
    inject_adapter_in_model(LoraConfig(r=200, target_modules=["0"]), plain)
    theirs = plain[0].lora_A["default"].weight.detach()
    initialise(plain, INIT_A, seed=0)
    ours = plain[0].lora_A["default"].weight.detach()
    for level in (0.01, 0.25, 0.5, 0.75, 0.99):
        bound = 2000**-0.5
        assert ours.quantile(level).item() == pytest.approx(theirs.quantile(level).item(), abs=0.01 * bound)
    assert ours.abs().max() <= bound and theirs.abs().max() <= bound


@pytest.mark.parametrize(("c_a", "c_b"), [(1, 1), (0.25, 4), (4, 0.5), (0, 2)])
def test_reset_starts_at_the_pretrained_output(c_a: float, c_b: float) -> None:
    """Property 2."""
    model, weight = one_layer(64, 48, InitScheme(c_a, c_b, reset=True), rank=8)
    x = torch.randn(10, 64)
    base = nn.functional.linear(x, weight, model.fc.base_layer.bias)
    torch.testing.assert_close(model(x), base, rtol=0, atol=1e-6 * max(1, c_a * c_b))


def test_without_reset_the_start_differs_by_the_product() -> None:
    """Property 3."""
    model, weight = one_layer(64, 48, INIT_AB, rank=8)
    a, b = factors(model)
    x = torch.randn(10, 64)
    difference = model(x) - nn.functional.linear(x, weight, model.fc.base_layer.bias)
    torch.testing.assert_close(difference, x @ (6 / 8 * b @ a).T, rtol=0, atol=1e-6)
    assert difference.abs().max() > 0.01
    assert torch.equal(model.fc.base_layer.weight, weight)


def test_variances_of_the_factors_and_of_their_product() -> None:
    """Property 4: both widths use in_features, although the fan-in of B is the rank."""
    n, m, rank, c_a, c_b = 2000, 1600, 640, 0.5, 3.0
    model, _ = one_layer(n, m, InitScheme(c_a, c_b), rank=rank)
    a, b = factors(model)
    assert min(a.numel(), b.numel()) >= 1_000_000
    assert a.var().item() == pytest.approx(c_a**2 / (3 * n), rel=0.02)
    assert b.var().item() == pytest.approx(c_b**2 / (3 * n), rel=0.02)
    scale = 6.0 / rank
    expected = scale**2 * m * n * rank * c_a**2 * c_b**2 / (9 * n**2)
    assert (scale * b @ a).square().sum().item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("scheme", "a_moves", "b_moves"), [(INIT_A, 0, 1), (INIT_B, 1, 0), (INIT_AB, 1, 1)])
def test_first_gradients(scheme: InitScheme, a_moves: bool, b_moves: bool) -> None:
    """Property 5: a factor gets a gradient at step 0 exactly when the other one is not zero."""
    model, _ = one_layer(16, 12, scheme)
    model(torch.randn(5, 16)).square().sum().backward()
    layer = dict(lora_layers(model))["fc"]
    assert bool(layer.lora_A["default"].weight.grad.any()) == a_moves
    assert bool(layer.lora_B["default"].weight.grad.any()) == b_moves


def test_draws_depend_on_seed_and_name_alone_and_are_shared_by_schemes() -> None:
    """Property 10, and pairing: Init[A], Init[B] and Init[AB] of a seed use the same A0 and B0."""

    def draws(scheme: InitScheme, seed: int, noise: int = 0) -> list[torch.Tensor]:
        model = nn.ModuleDict({"one": nn.Linear(20, 12), "two": nn.Linear(20, 12)})
        torch.manual_seed(noise)
        attach(model, adapter(scheme, rank=3, targets=["one", "two"]), seed)
        return [
            w
            for _, layer in lora_layers(model)
            for w in (layer.lora_A["default"].weight, layer.lora_B["default"].weight)
        ]

    first = draws(INIT_AB, 0)
    assert all(map(torch.equal, first, draws(INIT_AB, 0, noise=9)))
    assert not any(map(torch.equal, first, draws(INIT_AB, 1)))
    assert not torch.equal(first[0], first[2]) and not torch.equal(first[1], first[3])
    assert torch.equal(draws(INIT_A, 0)[0], first[0]) and torch.equal(draws(INIT_B, 0)[1], first[1])
    assert torch.equal(draws(InitScheme(2, 3), 0)[1], 3 * first[1])


def test_names_do_not_depend_on_pefts_wrapper() -> None:
    def base() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    injected = attach(base(), adapter(INIT_AB, rank=2, targets=["0"]), seed=3)
    wrapped = get_peft_model(base(), LoraConfig(r=2, lora_alpha=6.0, target_modules=["0"]))
    initialise(wrapped, INIT_AB, seed=3)
    x = torch.randn(4, 8)
    torch.testing.assert_close(injected(x), wrapped(x), rtol=0, atol=0)


def test_only_the_factors_train_and_their_number_is_that_of_lora() -> None:
    """Property 7: r (m + n) a layer, whatever the start."""
    for scheme in (INIT_A, INIT_B, INIT_AB, INIT_AB_RESET):
        model = nn.ModuleDict({"one": nn.Linear(20, 12), "two": nn.Linear(7, 9), "other": nn.Linear(4, 4)})
        attach(model, adapter(scheme, rank=3, targets=["one", "two"]), 0)
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        assert all("lora_" in name for name in trained)
        assert sum(model.get_parameter(name).numel() for name in trained) == 3 * (20 + 12) + 3 * (7 + 9)


def test_conv1d_of_gpt2() -> None:
    """A Conv1D keeps its weight as (n, m): in_features and the reset must follow."""
    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(n_layer=2, n_embd=24, n_head=2, n_positions=16, vocab_size=30)).eval()
    pretrained = copy.deepcopy(model)
    ids = torch.randint(0, 30, (2, 9))
    attach(model, adapter(INIT_AB_RESET, rank=4, targets=["c_attn", "mlp.c_proj"]), 0)
    layers = dict(lora_layers(model))
    assert set(layers) == {f"h.{i}.{name}" for i in (0, 1) for name in ("attn.c_attn", "mlp.c_proj")}
    attention, projection = layers["h.0.attn.c_attn"], layers["h.0.mlp.c_proj"]
    assert attention.lora_B["default"].weight.shape == (72, 4)
    assert projection.lora_A["default"].weight.abs().max() <= 96**-0.5  # in_features of this one is 4 * 24
    assert projection.lora_B["default"].weight.abs().max() > 0.8 * 96**-0.5
    expected = pretrained(ids).last_hidden_state
    torch.testing.assert_close(model(ids).last_hidden_state, expected, rtol=0, atol=1e-5)
    attach(pretrained, adapter(INIT_AB, rank=4, targets=["c_attn", "mlp.c_proj"]), 0)
    assert (pretrained(ids).last_hidden_state - expected).abs().max() > 1e-2


def test_reset_of_bfloat16_weights_is_within_their_rounding() -> None:
    model, weight = one_layer(256, 192, INIT_AB_RESET, rank=8, dtype=torch.bfloat16)
    layer = dict(lora_layers(model))["fc"]
    assert layer.get_base_layer().weight.dtype == torch.bfloat16
    a, b = (factor.float() for factor in factors(model))
    effective = layer.get_base_layer().weight.detach().float() + layer.scaling["default"] * b @ a
    step = torch.finfo(torch.bfloat16).eps * torch.maximum(
        weight.float().abs(), layer.get_base_layer().weight.float().abs()
    )
    assert ((effective - weight.float()).abs() <= step / 2 + 1e-7).all()
    assert not torch.equal(effective, weight.float())  # so exactness is not to be had in this type


def test_patterns() -> None:
    model = nn.ModuleDict(
        {"a": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), "b": nn.Linear(4, 4)}
    )
    assert match_layers(model, ["b"]) == ["b"]
    assert match_layers(model, ["0", "a.2"]) == ["a.0", "a.2"]
    assert match_layers(model, ["a.*"]) == ["a.0", "a.2"]
    assert match_layers(model, ["*", "b"]) == ["a.0", "a.2", "b"]


def test_a_pattern_that_matches_nothing_names_the_nearest_layers() -> None:
    model = nn.ModuleDict({"query": nn.Linear(4, 4), "value": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
    with pytest.raises(
        UserError, match=r"'querry' matches no linear layer of ModuleDict.*Nearest names: query"
    ) as error:
        attach(model, adapter(INIT_A, rank=2, targets=["value", "querry"]), 0)
    assert "norm" not in str(error.value)
    with pytest.raises(UserError, match=r"adapter\.targets is empty"):
        attach(model, adapter(INIT_A, rank=2, targets=[]), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 9}, r"rank=9 is above the smaller side of 'fc' \(8, 12\): use 8 or less"),
        ({"rank": 0}, "rank must be at least 1"),
        ({"alpha": 0.0}, "alpha positive"),
        ({"dropout": 1.0}, r"dropout in \[0, 1\)"),
        ({"c_a": 0.0, "c_b": 0.0}, "no gradient would reach A or B"),
        ({"c_a": -1.0}, "not negative"),
        ({"c_b": float("nan")}, "finite"),
        ({"method": "lroa"}, "Did you mean 'lora'"),
        ({"method": "pissa", "reset": True}, "brings its own start"),
    ],
)
def test_bad_adapter(change: dict, message: str) -> None:
    model = nn.ModuleDict({"fc": nn.Linear(12, 8)})
    with pytest.raises(UserError, match=message):
        attach(model, AdapterConfig(**({"targets": ["fc"], "rank": 2} | change)), 0)


def test_bad_models() -> None:
    with pytest.raises(UserError, match="no LoRA layer of an adapter called 'default'"):
        initialise(nn.Linear(3, 3), INIT_A, 0)
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 4, 3)})
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["conv"]), model)
    with pytest.raises(UserError, match="'conv' is a Conv2d"):
        initialise(model, INIT_A, 0)
    model, _ = one_layer(8, 8, INIT_A)
    model.fc.merge()
    with pytest.raises(UserError, match="merged"):
        initialise(model, INIT_A, 0)
