"""Time and memory of a training step: our adapter against peft's default LoRA, same model and batch, one run.

Ours is what `projects.nonzero_lora.adapters.attach` makes from Init[AB] + reset; theirs is `get_peft_model`
with its default start. Steps of the two alternate and the time ratio is the median over pairs of neighbours,
so that a machine busy with other things slows both. On a GPU memory is the allocator's peak, elsewhere the
bytes that a forward pass keeps for the backward pass plus parameters, gradients and optimiser state. Target:
both ratios at most 1.05.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import torch
from torch import Tensor, nn

from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.config import AdapterConfig
from shared.errors import fail_cleanly

RANK, ALPHA, TARGETS = 8, 16, ["query", "value"]


def encoder(layers: int, width: int) -> nn.Module:
    """A random BERT encoder of MiniLM's shape by default; neither time nor memory depends on the weights."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertModel(config, add_pooling_layer=False)


def ours(model: nn.Module) -> nn.Module:
    return attach(
        model, AdapterConfig(c_b=1.0, reset=True, rank=RANK, alpha=ALPHA, targets=list(TARGETS)), seed=0
    )


def theirs(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS)))


class Stepper:
    """One model with its optimiser; `step` trains it once on the batch."""

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.model, self.ids = model.to(ids.device), ids
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(input_ids=self.ids).last_hidden_state.square().mean().backward()
        self.optimizer.step()

    def seconds(self) -> float:
        _wait(self.ids.device)
        started = time.perf_counter()
        self.step()
        _wait(self.ids.device)
        return time.perf_counter() - started

    def memory(self) -> int:
        """Bytes: peak of the allocator on a GPU; elsewhere what the step must hold at once, counted."""
        if self.ids.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.step()
            return torch.cuda.max_memory_allocated()
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.model(input_ids=self.ids).last_hidden_state.square().mean()
        for parameter in self.model.parameters():
            kept[parameter.untyped_storage().data_ptr()] = parameter.untyped_storage().nbytes()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return sum(kept.values()) + 3 * sum(
            p.numel() * p.element_size() for p in trained
        )  # gradient, two moments


def compare(device: str, layers: int, width: int, batch: int, length: int, repeats: int) -> dict[str, Any]:
    """Medians over `repeats` alternating steps, and the ratios ours / theirs."""
    base = encoder(layers, width)
    ids = torch.randint(1000, (batch, length), generator=torch.Generator().manual_seed(1)).to(device)
    makers: dict[str, Callable[[nn.Module], nn.Module]] = {"ours": ours, "peft": theirs}
    memory, times = {}, {name: [] for name in makers}
    for name, make in makers.items():  # one after the other, so that a GPU's peak is of one model
        stepper = Stepper(make(copy.deepcopy(base)), ids)
        stepper.step()
        memory[name] = stepper.memory()
        del stepper
    steppers = {name: Stepper(make(copy.deepcopy(base)), ids) for name, make in makers.items()}
    for stepper in steppers.values():
        for _ in range(3):
            stepper.step()
    for number in range(repeats):
        for name in list(steppers)[:: 1 if number % 2 else -1]:
            times[name].append(steppers[name].seconds())
    median = {name: statistics.median(values) for name, values in times.items()}
    return {
        "device": device,
        "shape": f"{layers} x {width}, batch {batch} x {length} tokens, r {RANK}",
        "ours_ms": round(1000 * median["ours"], 2),
        "peft_ms": round(1000 * median["peft"], 2),
        "time_ratio": round(statistics.median(a / b for a, b in zip(*times.values(), strict=True)), 4),
        "ours_mb": round(memory["ours"] / 2**20, 2),
        "peft_mb": round(memory["peft"] / 2**20, 2),
        "memory_ratio": round(memory["ours"] / memory["peft"], 4),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = compare(
        options.device, options.layers, options.width, options.batch, options.length, options.repeats
    )
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
