"""Non-zero LoRA starts on a GPU: same start and steps as on a CPU, bfloat16 resets, cost against peft."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from projects.nonzero_lora import build
from projects.nonzero_lora.adapters import attach, merge
from projects.nonzero_lora.config import AdapterConfig, Config
from projects.nonzero_lora.initialisation import lora_layers
from shared.training.config import compose
from shared.training.experiment import run_experiment

TARGETS = ["q_proj", "k_proj", "v_proj"]


def checks() -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    return [
        ("same_as_cpu", same_as_cpu),
        ("bfloat16_reset", bfloat16_reset),
        ("merge", merged_forward),
        ("width_scaling", width_scaling),
        ("step_against_peft", step_against_peft),
    ]


def language_model(width: int = 256, layers: int = 4) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
    ).eval()


def config(**more: Any) -> AdapterConfig:
    return AdapterConfig(**({"c_b": 1.0, "reset": True, "targets": list(TARGETS)} | more))


def losses(model: nn.Module, ids: Tensor, steps: int) -> list[float]:
    """Loss before each of `steps` AdamW steps."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    found = []
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def same_as_cpu(device: str = "cuda", steps: int = 10) -> dict[str, Any]:
    """Factors are drawn on the CPU: both devices start from the same ones and train alike in float32."""
    ids = torch.randint(512, (4, 32), generator=torch.Generator().manual_seed(1))
    first = attach(language_model(), config(), seed=3)
    second = attach(language_model().to(device), config(), seed=3)
    for (name, a), (_, b) in zip(lora_layers(first), lora_layers(second), strict=True):
        for factor in ("lora_A", "lora_B"):
            there = getattr(b, factor)["default"].weight
            assert there.device.type == device, (name, there.device)
            assert torch.equal(getattr(a, factor)["default"].weight, there.cpu()), name
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        cpu, gpu = losses(first, ids, steps), losses(second, ids.to(device), steps)
    finally:
        torch.set_float32_matmul_precision(precision)
    apart = max(abs(a - b) for a, b in zip(cpu, gpu, strict=True))
    assert apart < 1e-3, (cpu, gpu)
    assert gpu[-1] < gpu[0] - 0.01, gpu
    return {"largest_difference": apart, "first": gpu[0], "last": gpu[-1]}


@torch.no_grad()
def bfloat16_reset(device: str = "cuda") -> dict[str, Any]:
    """W_eff + (alpha / r) B0 A0 is the pretrained weight up to half a unit of bfloat16."""
    pretrained = language_model().bfloat16().to(device)
    weights = {name: module.weight.clone() for name, module in pretrained.named_modules() if _target(name)}
    model = attach(copy.deepcopy(pretrained), config(), seed=3)
    worst = 0.0
    for name, layer in lora_layers(model):
        a, b = (getattr(layer, f)["default"].weight.float() for f in ("lora_A", "lora_B"))
        kept = layer.get_base_layer().weight
        whole = kept.float() + layer.scaling["default"] * (b @ a)
        unit = torch.finfo(torch.bfloat16).eps * kept.float().abs().clamp_min(1e-4)
        worst = max(worst, ((whole - weights[name].float()).abs() / unit).max().item())
    assert worst <= 0.51, worst
    return {"worst_in_units": worst}


@torch.no_grad()
def merged_forward(device: str = "cuda") -> dict[str, Any]:
    """Merged and unmerged models answer alike."""
    ids = torch.randint(512, (4, 32), generator=torch.Generator().manual_seed(1)).to(device)
    model = attach(language_model().to(device), config(reset=False), seed=3)
    before = model(input_ids=ids).logits
    merge(model)
    apart = (model(input_ids=ids).logits - before).abs().max().item()
    assert apart < 1e-2, apart  # TF32 products of another order
    return {"largest_difference": apart}


def width_scaling(device: str = "cuda") -> dict[str, Any]:
    """The width instrument runs on the device, its inputs included, and finds the exponents of the CPU."""
    layers = {
        "task": "width_scaling",
        "trainer": {"max_epochs": 1, "devices": 1},
        "adapter": {"rank": 4, "alpha": 4, "c_b": 1, "targets": ["n*"]},
        "width_scaling": {"widths": [64, 128, 256]},
        "wandb": {"mode": "disabled"},
    }
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    found = []
    try:
        for accelerator in ("cpu", "cpu" if device == "cpu" else "gpu"):
            settings = compose(Config, layers, overrides=[f"trainer.accelerator={accelerator}"])
            with TemporaryDirectory() as folder:
                found.append(run_experiment(build, settings, Path(folder), group="check", name="width"))
    finally:
        torch.set_float32_matmul_precision(precision)
    cpu, gpu = found
    names = [f"slope/{part}" for part in ("d1", "d2", "d3")]
    apart = max(abs(cpu[name] - gpu[name]) for name in names)
    assert apart < 0.02, (cpu, gpu)
    return {"largest_difference": apart} | {name: gpu[name] for name in names}


def step_against_peft(device: str = "cuda") -> dict[str, Any]:
    """The benchmark at a size that fills the device."""
    path = Path(__file__).parent.parent / "lora_step.py"
    spec = importlib.util.spec_from_file_location("lora_step", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = device == "cpu"
    found = module.compare(
        device,
        layers=2 if small else 12,
        width=96 if small else 768,
        batch=2 if small else 64,
        length=8 if small else 128,
        repeats=3 if small else 40,
    )
    assert found["memory_ratio"] <= 1.05, found
    assert small or found["time_ratio"] <= 1.05, found
    return found


def _target(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in TARGETS
