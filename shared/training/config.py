"""Typed configuration: dataclasses give the keys and types, YAML and the command line give the values.

Layers are merged in order, later ones win: the schema's defaults < `configs/base.yaml` < the table's config <
its profile < row and column < the command line. A key that no dataclass knows is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from shared.errors import UserError, suggest
from shared.paths import CONFIGS


@dataclass
class TrainerConfig:
    """Arguments of `lightning.Trainer`, passed on as they are, so its strategies and precisions all work."""

    max_epochs: int | None = None
    max_steps: int = -1
    accelerator: str = "auto"
    devices: int | str = "auto"
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    accumulate_grad_batches: int = 1
    gradient_clip_val: float | None = None
    check_val_every_n_epoch: int | None = 1
    val_check_interval: int | float | None = None
    num_sanity_val_steps: int = 0
    limit_train_batches: int | float | None = None
    limit_val_batches: int | float | None = None
    limit_test_batches: int | float | None = None
    log_every_n_steps: int = 1
    deterministic: bool | str = "warn"
    inference_mode: bool = True


@dataclass
class DataConfig:
    """`root` is the folder that holds the real data sets; embedded sets live in the cache."""

    root: str = ""


@dataclass
class WandbConfig:
    """`mode` is auto (online with a key, else offline), online, offline or disabled."""

    mode: str = "auto"
    project: str = "paperworks"
    entity: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class RuntimeConfig:
    """How a run is carried out; nothing here may change its result."""

    threads: int = 0  # torch threads of a run; 0 = its share of the cores
    num_workers: int = 0  # data loading processes
    checkpoint_every_n_steps: int = 0  # 0 = by time only
    checkpoint_minutes: float = 5.0
    keep_checkpoint: bool = False  # keep checkpoints/last.ckpt once the run has finished
    progress: bool = False


@dataclass
class SlurmConfig:
    """Resources of one run's job under `--launcher slurm`."""

    partition: str | None = None
    account: str | None = None
    timeout_min: int = 240
    gpus_per_node: int = 0
    cpus_per_task: int = 2
    mem_gb: int = 16


@dataclass
class BaseConfig:
    """What every project's `Config` has; projects add `model`, `optimizer`, their own `data`, ..."""

    seed: int = 0
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)


NOT_SEMANTIC = ("seed", "wandb", "runtime", "slurm", "data.root")  # a run's result does not depend on these
SECRET = re.compile(r"(^|_)(api_?key|token|password|passwd|secret|credentials?)($|_)", re.IGNORECASE)


def base_layer() -> dict[str, Any]:
    """The content of `configs/base.yaml`."""
    return OmegaConf.to_container(OmegaConf.load(CONFIGS / "base.yaml"))


def compose(
    schema: type[BaseConfig], *layers: Mapping[str, Any], overrides: Sequence[str] = ()
) -> DictConfig:
    """Merge `layers` and `key=value` overrides over the defaults of `schema`.

    Raises:
        UserError: a key that the schema lacks (the nearest one is named), a value of the wrong type (the
            allowed type is named), or an override that is not `key=value`.
    """
    layers = (*layers, _parse(overrides))
    try:
        config = OmegaConf.merge(_defaults(schema), *layers)
    except OmegaConfBaseException:
        config = _find_fault(schema, layers)
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"these keys need a value: {', '.join(missing)}. Give them as key=value.")
    if endless := [f"{key}={value}" for key, value in _numbers(config) if not math.isfinite(value)]:
        raise UserError(f"expected finite numbers, found {', '.join(endless)}.")
    return config


def resolved(config: DictConfig | BaseConfig) -> dict[str, Any]:
    """`config` as plain nested dicts, interpolations resolved."""
    return OmegaConf.to_container(
        OmegaConf.structured(config) if dataclasses.is_dataclass(config) else config, resolve=True
    )


def redact(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `config` in which the value of every key that looks like a secret is `***`."""

    def clean(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return redact(value)
        if isinstance(value, list):
            return [clean(key, item) for item in value]
        return "***" if value and SECRET.search(key) else value

    return {str(key): clean(str(key), value) for key, value in config.items()}


def fingerprint(config: DictConfig | BaseConfig) -> str:
    """12 hex digits that name what the run computes: equal for configs that differ only in `NOT_SEMANTIC`."""
    plain = resolved(config)
    for dotted in NOT_SEMANTIC:
        *parents, leaf = dotted.split(".")
        node = plain
        for parent in parents:
            node = node.get(parent, {})
        node.pop(leaf, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def _parse(overrides: Sequence[str]) -> DictConfig:
    for override in overrides:
        if not re.match(r"^[\w\-]+(\.[\w\-]+)*=", override):
            raise UserError(f"expected key=value, found '{override}'. Example: optimizer.lr=1e-3")
    try:
        return OmegaConf.from_dotlist(list(overrides))
    except Exception as error:  # YAML errors of a value come in many classes
        raise UserError(
            f"cannot read the value in {' '.join(overrides)}: {str(error).splitlines()[0]}"
        ) from None


@functools.cache
def _defaults(schema: type[BaseConfig]) -> DictConfig:
    return OmegaConf.structured(schema)  # slow, and the same for every run of a table


def _numbers(node: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Dotted name and value of every float below `node`."""
    if isinstance(node, DictConfig | ListConfig):
        entries = node.items_ex(resolve=False) if isinstance(node, DictConfig) else enumerate(node)
        for key, value in entries:
            yield from _numbers(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(node, float):
        yield prefix, node


def _find_fault(schema: type[BaseConfig], layers: Sequence[Mapping[str, Any]]) -> DictConfig:
    """Merge layer by layer, slowly, to say which one is wrong."""
    config = OmegaConf.structured(schema)
    for layer in layers:
        try:
            config = OmegaConf.merge(config, layer)
        except OmegaConfBaseException as error:
            raise UserError(_explain(error, schema, layer)) from None
    return config


def _fields(schema: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and type of every key of a dataclass, inner ones included."""
    for name, kind in typing.get_type_hints(schema).items():
        yield prefix + name, kind
        if dataclasses.is_dataclass(kind):
            yield from _fields(kind, f"{prefix}{name}.")


def _explain(error: OmegaConfBaseException, schema: type[BaseConfig], layer: Any) -> str:
    known = dict(_fields(schema))
    key = str(getattr(error, "full_key", "") or "")
    reason = str(error).splitlines()[0]
    if key and key not in known and not any(key.startswith(f"{name}[") for name in known):
        leaf = key.rsplit(".", 1)[-1]
        twins = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
        hint = f" Did you mean '{twins[0]}'?" if twins else suggest(key, known)
        parent = key.rpartition(".")[0]
        siblings = ", ".join(sorted(n.rpartition(".")[2] for n in known if n.rpartition(".")[0] == parent))
        return f"unknown config key '{key}'.{hint} Keys of '{parent or 'the config'}': {siblings}."
    if key in known:
        found = OmegaConf.select(OmegaConf.create(dict(layer)), key)
        return f"config key '{key}' takes {_name(known[key])}, found {found!r} ({type(found).__name__})."
    for name, kind in known.items():  # OmegaConf does not name the key when a whole section is overwritten
        found = OmegaConf.select(OmegaConf.create(dict(layer)), name)
        if dataclasses.is_dataclass(kind) and found is not None and not OmegaConf.is_dict(found):
            keys = ", ".join(entry.name for entry in dataclasses.fields(kind))
            return f"config key '{name}' is a section with keys {keys}; found {found!r}."
    return f"the config cannot be read: {reason}" + (f" (key '{key}')" if key else "")


def _name(kind: Any) -> str:
    """`float or null` for `float | None`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_name(arg) for arg in typing.get_args(kind))
    return "null" if kind is type(None) else str(getattr(kind, "__name__", kind))
