"""What is saved rebuilds the model, foreign base models are refused, peft loads the plain export."""

import copy
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2Model

from projects.nonzero_lora.adapters import attach, merge
from projects.nonzero_lora.config import AdapterConfig
from projects.nonzero_lora.initialisation import base_weight, lora_layers
from projects.nonzero_lora.saving import export_plain_adapter, load_adapter, save_adapter
from shared.errors import UserError

SCHEMES = [(1.0, 0.0, False), (1.0, 1.0, False), (1.0, 1.0, True), (0.5, 2.0, True)]


def gpt2(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return GPT2Model(GPT2Config(n_layer=2, n_embd=24, n_head=2, n_positions=16, vocab_size=30)).eval()


def trained(config: AdapterConfig, seed: int = 7) -> nn.Module:
    model = attach(gpt2(), config, seed)
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def trained_in_float32(config: AdapterConfig, seed: int = 7) -> nn.Module:
    """As the language models train: bfloat16 base and start, then factors in float32."""
    model = attach(gpt2().bfloat16(), config, seed)
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def output(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(18).view(2, 9)).last_hidden_state


def config_of(c_a: float, c_b: float, reset: bool, **more) -> AdapterConfig:
    return AdapterConfig(
        c_a=c_a, c_b=c_b, reset=reset, rank=4, alpha=8.0, targets=["c_attn", "mlp.c_fc"], **more
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", ["lora", "rslora"])
def test_round_trip(tmp_path: Path, scheme: tuple, method: str) -> None:
    config = config_of(*scheme, method=method)
    model = trained(config)
    save_adapter(model, tmp_path / "deep" / "adapter.safetensors", config, seed=7)
    fresh = gpt2()
    found, seed = load_adapter(fresh, tmp_path / "deep" / "adapter.safetensors")
    assert (found, seed) == (config, 7)
    torch.testing.assert_close(output(fresh), output(model), rtol=0, atol=0)
    size = (tmp_path / "deep" / "adapter.safetensors").stat().st_size
    assert size < 4 * 2 * 4 * (24 + 72 + 24 + 96) + 8000  # the factors and little else, no frozen weight


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", ["lora", "rslora"])
def test_plain_export_is_an_ordinary_peft_adapter(tmp_path: Path, scheme: tuple, method: str) -> None:
    config = config_of(*scheme, method=method)
    model = trained(config)
    export_plain_adapter(model, tmp_path, config, seed=7)
    loaded = PeftModel.from_pretrained(gpt2(), tmp_path)
    torch.testing.assert_close(output(loaded), output(model), rtol=0, atol=2e-5)
    assert loaded.peft_config["default"].r == (8 if scheme[2] else 4)


def test_float32_factors_on_a_bfloat16_base_come_back_unrounded(tmp_path: Path) -> None:
    config = config_of(1.0, 1.0, True)
    model = trained_in_float32(config)
    save_adapter(model, tmp_path / "a.safetensors", config, seed=7)
    fresh = gpt2().bfloat16()
    load_adapter(fresh, tmp_path / "a.safetensors")
    found = dict(lora_layers(fresh))
    for name, layer in lora_layers(model):
        for factor in ("lora_A", "lora_B"):
            there = getattr(found[name], factor)["default"].weight
            assert there.dtype == torch.float32
            assert torch.equal(there, getattr(layer, factor)["default"].weight)
        assert torch.equal(base_weight(found[name]), base_weight(layer))
    assert torch.equal(output(fresh), output(model))


def test_plain_export_undoes_the_reset_that_was_made_in_bfloat16(tmp_path: Path) -> None:
    """What is left is the one rounding of W_eff: half a unit of it at most."""
    config = config_of(1.0, 1.0, True)
    model = trained_in_float32(config)
    export_plain_adapter(model, tmp_path, config, seed=7)
    exported = dict(lora_layers(PeftModel.from_pretrained(gpt2().bfloat16(), tmp_path)))
    for name, layer in lora_layers(model):
        ours, theirs = (
            base_weight(one).float()
            + one.scaling["default"] * one.lora_B["default"].weight @ one.lora_A["default"].weight
            for one in (layer, exported[name])
        )
        unit = torch.finfo(torch.bfloat16).eps * base_weight(layer).float().abs().clamp_min(1e-3)
        assert ((ours - theirs).abs() / unit).max() <= 0.51, name


def test_without_the_seed_the_reset_is_lost(tmp_path: Path) -> None:
    """Why the start is saved: the trained factors on the pretrained weight are another function."""
    config = config_of(1.0, 1.0, True)
    model = trained(config)
    plain = copy.deepcopy(config)
    plain.reset = False
    export_plain_adapter(model, tmp_path, plain, seed=7)
    loaded = PeftModel.from_pretrained(gpt2(), tmp_path)
    assert (output(loaded) - output(model)).abs().max() > 1e-2


def test_another_base_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    config = config_of(1.0, 1.0, True)
    save_adapter(trained(config), path, config, seed=7)
    with pytest.raises(UserError, match=r"another frozen weight of 'h\.0\.attn\.c_attn'.*unchanged"):
        load_adapter(gpt2(seed=1), path)


@pytest.mark.parametrize("reset", [False, True])
def test_a_rescaled_base_model_is_refused(tmp_path: Path, reset: bool) -> None:
    path = tmp_path / "adapter.safetensors"
    config = config_of(1.0, 1.0, reset)
    save_adapter(trained(config), path, config, seed=7)
    rescaled = gpt2()
    rescaled.h[1].mlp.c_fc.weight.data *= 1.01
    with pytest.raises(UserError, match=r"another frozen weight of 'h\.1\.mlp\.c_fc'"):
        load_adapter(rescaled, path)


def test_one_changed_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    config = config_of(1.0, 1.0, True)
    save_adapter(trained(config), path, config, seed=7)
    edited = gpt2()
    edited.h[1].mlp.c_fc.weight.data[0, 0] += 0.05
    with pytest.raises(UserError, match=r"another frozen weight of 'h\.1\.mlp\.c_fc'"):
        load_adapter(edited, path)


def test_a_wrong_seed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    config = config_of(1.0, 1.0, True)
    save_adapter(trained(config, seed=7), path, config, seed=8)
    with pytest.raises(UserError, match="another frozen weight"):
        load_adapter(gpt2(), path)


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    with pytest.raises(UserError, match="found nothing at"):
        load_adapter(gpt2(), path)
    config = config_of(1.0, 1.0, True)
    save_adapter(trained(config), path, config, seed=7)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_adapter(gpt2(), path)
    path.write_bytes(whole)
    save_file(load_file(path), tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="not an adapter of this project"):
        load_adapter(gpt2(), tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="already carries an adapter"):
        load_adapter(trained(config), path)
    with pytest.raises(UserError, match="matches no linear layer"):
        load_adapter(nn.Sequential(nn.Linear(3, 3)), path)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    config = config_of(1.0, 1.0, True)
    model = trained(config)
    merge(model)
    with pytest.raises(UserError, match="unmerge"):
        save_adapter(model, tmp_path / "a", config, 7)
    with pytest.raises(UserError, match="found 'pissa'"):
        save_adapter(model, tmp_path / "a", config_of(1.0, 0.0, False, method="pissa"), 7)
