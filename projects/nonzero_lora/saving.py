"""Adapters on disk. With `reset` the factors do not tell the frozen weight: the start is kept too.

`save_adapter` keeps the factors, how they started (scheme and seed) and a sketch of every frozen weight
W_eff; `load_adapter` rebuilds W_eff on a fresh base model and compares. `export_plain_adapter` writes an
ordinary peft adapter instead, for people without this code.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from projects.nonzero_lora.adapters import attach, exactly, scheme_of
from projects.nonzero_lora.config import AdapterConfig
from projects.nonzero_lora.initialisation import PEFT_PREFIX, base_weight, draw, lora_layers
from shared.errors import UserError
from shared.training.seeding import generator

FORMAT = "nonzero-lora/2"
PROBES = 8
TOLERANCE = 1e-3  # of ||W||; another seed or a forgotten reset moves a sketch by some 1e-2, rounding by 1e-6
SAVED_METHODS = ("lora", "rslora")


def sketch(layer: LoraLayer, name: str) -> Tensor:
    """Digest of a layer's frozen weight: `PROBES` numbers u_k^T W v_k and ||W||, float64, u and v fixed.

    Unlike a hash of the bytes it survives the last-bit differences between two machines' matrix products.
    """
    weight = base_weight(layer).double().cpu()
    stream = generator("sketch", name)
    left = torch.randn(PROBES, weight.shape[0], generator=stream, dtype=torch.float64)
    right = torch.randn(weight.shape[1], PROBES, generator=stream, dtype=torch.float64)
    return torch.cat([((left @ weight).T * right).sum(0), weight.norm()[None]])


def save_adapter(model: nn.Module, path: Path, config: Any, seed: int) -> None:
    """Write the adapter that `attach(model, config, seed)` made, after training, to one safetensors file.

    Args:
        config, seed: those given to `attach`.

    Raises:
        UserError: the adapter is merged, or its method's frozen weight does not follow from the seed.
    """
    if config.method not in SAVED_METHODS:
        raise UserError(
            f"only {', '.join(SAVED_METHODS)} adapters are saved by scheme and seed; found '{config.method}'."
        )
    tensors = {}
    for name, layer in lora_layers(model):
        if layer.merged:
            raise UserError(f"the adapter of '{name}' is merged; call unmerge(model) before saving.")
        tensors[f"{name}.lora_A"] = layer.lora_A["default"].weight.detach().cpu().contiguous()
        tensors[f"{name}.lora_B"] = layer.lora_B["default"].weight.detach().cpu().contiguous()
        tensors[f"{name}.sketch"] = sketch(layer, name)
    plain = OmegaConf.to_container(OmegaConf.create(_as_dict(config)))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, {"format": FORMAT, "adapter": json.dumps(plain), "seed": str(seed)})


@torch.no_grad()
def load_adapter(model: nn.Module, path: Path) -> tuple[AdapterConfig, int]:
    """Attach the adapter saved at `path` to a fresh base model, in place; returns its config and seed.

    The factors keep the dtype they were saved in (float32 ones on a bfloat16 model, for instance).

    Raises:
        UserError: no such file, a damaged or foreign one, or `model` is not the base model it was trained
            on: a frozen weight, after the reset, is not the one that was saved.
    """
    if not path.is_file():
        raise UserError(f"expected an adapter file, found nothing at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({error}); save the adapter again."
        ) from None
    if about.get("format") != FORMAT:
        raise UserError(f"{path} is not an adapter of this project: expected format {FORMAT}, found {about}.")
    if any(isinstance(module, LoraLayer) for module in model.modules()):
        raise UserError("the model already carries an adapter; load into a fresh base model.")
    config, seed = AdapterConfig(**json.loads(about["adapter"])), int(about["seed"])
    attach(model, config, seed)
    layers = dict(lora_layers(model))
    saved = {key.removesuffix(".sketch") for key in tensors if key.endswith(".sketch")}
    if saved != set(layers):
        raise UserError(
            f"{path} holds other layers than the model: only in the file {sorted(saved - set(layers))[:3]}, "
            f"only in the model {sorted(set(layers) - saved)[:3]}."
        )
    for name, layer in layers.items():
        for factor in ("lora_A", "lora_B"):
            weight, value = getattr(layer, factor)["default"].weight, tensors[f"{name}.{factor}"]
            if weight.shape != value.shape:
                raise UserError(
                    f"{path}: {name}.{factor} is {tuple(value.shape)}, the model needs {tuple(weight.shape)}."
                )
            weight.data = value.to(weight.device)  # `copy_` would round to the dtype of the base
        known = tensors[f"{name}.sketch"]
        apart = ((sketch(layer, name) - known).abs().max() / known[-1].clamp_min(1e-30)).item()
        if not apart <= TOLERANCE:
            raise UserError(
                f"{path} was trained on another frozen weight of '{name}' (sketches differ by {apart:.2g} "
                f"of its norm, allowed {TOLERANCE:g}): load it into the pretrained model it was made from, "
                "unchanged."
            )
    return config, seed


def export_plain_adapter(
    model: nn.Module, folder: Path, config: Any, seed: int, base_model: str = ""
) -> None:
    """Write `adapter_model.safetensors` + `adapter_config.json`, an ordinary peft adapter.

    `PeftModel.from_pretrained` loads it as it is. With reset the rank doubles,
    W_eff + s B A = W + s [B, -B0] [A; A0], so the base model stays the pretrained one. The two sides are
    equal up to rounding: W_eff was rounded once to the dtype of W, the product is not.

    Args:
        config, seed: those given to `attach`.
        base_model: name or folder of the pretrained model, noted in the file for tools that fetch it.
    """
    if config.method not in SAVED_METHODS:
        raise UserError(f"only {', '.join(SAVED_METHODS)} adapters are exported; found '{config.method}'.")
    tensors, scheme, layers = {}, scheme_of(config), dict(lora_layers(model))
    for name, layer in layers.items():
        a = layer.lora_A["default"].weight.detach().cpu()
        b = layer.lora_B["default"].weight.detach().cpu()
        if scheme.reset:
            stored = base_weight(layer).dtype  # of the factors when the reset was made
            start = draw(name, layer, scheme, seed, "default")
            a0, b0 = (factor.to(stored).to(a.dtype) for factor in start)
            a, b = torch.cat([a, a0], 0), torch.cat([b, -b0], 1)
        tensors[f"{PEFT_PREFIX}{name}.lora_A.weight"] = a.contiguous()
        tensors[f"{PEFT_PREFIX}{name}.lora_B.weight"] = b.contiguous()
    first = next(iter(layers.values()))
    rank = config.rank * (2 if scheme.reset else 1)
    exported = LoraConfig(
        r=rank,
        lora_alpha=first.scaling["default"] * rank,
        lora_dropout=config.dropout,
        target_modules=exactly(layers),
        fan_in_fan_out=first.fan_in_fan_out,
        base_model_name_or_path=base_model or None,
        inference_mode=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    exported.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


def _as_dict(config: Any) -> dict[str, Any]:
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) else dict(config)
