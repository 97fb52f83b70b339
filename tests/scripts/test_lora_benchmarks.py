"""The LoRA benchmark and GPU checks at a size for a CPU: they run and assert what they say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from projects.nonzero_lora.initialisation import lora_layers

BENCHMARKS = Path(__file__).parents[2] / "scripts" / "benchmarks"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem + "_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_sides_of_the_benchmark_train_the_same_number_of_values() -> None:
    benchmark = load(BENCHMARKS / "lora_step.py")
    found = benchmark.compare("cpu", layers=2, width=96, batch=2, length=8, repeats=3)
    assert found["memory_ratio"] == pytest.approx(1.0, abs=0.05)
    assert found["time_ratio"] > 0 and found["ours_mb"] > 1
    models = [make(benchmark.encoder(2, 96)) for make in (benchmark.ours, benchmark.theirs)]
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad) for model in models]
    assert counts[0] == counts[1] == 2 * 2 * 8 * (96 + 96)


def test_gpu_checks_pass_on_a_cpu() -> None:
    module = load(BENCHMARKS / "gpu_checks" / "nonzero_lora.py")
    figures = {name: function("cpu") for name, function in module.checks()}
    assert figures["same_as_cpu"]["largest_difference"] == 0
    assert figures["width_scaling"]["largest_difference"] == 0 and figures["width_scaling"]["slope/d1"] < 0
    assert figures["same_as_cpu"]["last"] < figures["same_as_cpu"]["first"]


def test_a_wrong_reset_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(BENCHMARKS / "gpu_checks" / "nonzero_lora.py")

    real = module.attach
    monkeypatch.setattr(module, "attach", lambda m, c, seed: _scaled(real(m, c, seed)))
    with pytest.raises(AssertionError):
        module.bfloat16_reset("cpu")


def _scaled(model: torch.nn.Module) -> torch.nn.Module:
    for _, layer in lora_layers(model):
        layer.get_base_layer().weight.data *= 1.02
    return model
