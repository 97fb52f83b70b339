"""One run: what a project hands over (`Experiment`) and how it is carried out (`run_experiment`)."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.model_helpers import is_overridden

from shared.errors import UserError
from shared.training.checkpoints import Interrupted, SaveAndStop, resumable
from shared.training.config import redact, resolved
from shared.training.logging import HistoryLogger, last_values, wandb_logger
from shared.training.seeding import SeedEveryStep, seed_run

__all__ = ["Experiment", "Interrupted", "build_trainer", "evaluate_checkpoint", "run_experiment"]


@dataclass
class Experiment:
    """What `projects.<paper>.build(config)` returns. `fit=False`: nothing is trained, only tested."""

    module: LightningModule
    datamodule: LightningDataModule | None = None
    callbacks: list[Callback] = field(default_factory=list)
    fit: bool = True


def build_trainer(config: Any, folder: Path, callbacks: list[Callback], loggers: list[Logger]) -> Trainer:
    """A Lightning `Trainer` from `config.trainer`, whose keys are the Trainer's own."""
    progress = config.runtime.progress
    torch.utils.deterministic.fill_uninitialized_memory = False  # a safety net that costs some per cent
    return Trainer(
        **resolved(config)["trainer"],
        default_root_dir=folder,
        callbacks=[*callbacks, *([RichProgressBar()] if progress else [])],
        logger=loggers or False,
        enable_progress_bar=progress,
        enable_model_summary=progress,
        enable_checkpointing=False,
    )


def run_experiment(
    build: Callable[[Any], Experiment],
    config: Any,
    run_dir: Path,
    *,
    group: str,
    name: str,
    stop: Callable[[], bool] = lambda: False,
    provenance: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Seed, build, resume if there is a checkpoint, fit, test; return every metric's last value.

    Args:
        build: the project's `build`.
        config: the composed config (a typed OmegaConf node).
        run_dir: receives `history.csv`, `checkpoints/last.ckpt`, `wandb/` and `artifacts/`.
        group, name: how the run is filed in Weights & Biases.
        stop: asked after every batch; when true a checkpoint is saved and `Interrupted` raised.
        provenance: code version and the like, filed with the config in Weights & Biases.

    A module that has an attribute `artifacts` gets the folder for its pictures and tables there.
    """
    _quieten()
    if config.runtime.threads:
        torch.set_num_threads(config.runtime.threads)
    checkpoint = run_dir / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    done = resumable(checkpoint)
    history = HistoryLogger(run_dir / "history.csv")
    history.resume_from(-1 if done is None else done)

    seed_run(config.seed)
    experiment = build(config)
    if hasattr(experiment.module, "artifacts"):
        experiment.module.artifacts = run_dir / "artifacts"
        experiment.module.artifacts.mkdir(exist_ok=True)
    saver = SaveAndStop(
        checkpoint, config.runtime.checkpoint_every_n_steps, config.runtime.checkpoint_minutes, stop
    )
    wandb = wandb_logger(
        config.wandb,
        run_dir,
        group=group,
        name=name,
        config=redact(resolved(config) | {"provenance": provenance or {}}),
    )
    trainer = build_trainer(
        config,
        run_dir,
        [SeedEveryStep(config.seed), *experiment.callbacks, saver],
        [history, wandb] if wandb else [history],
    )
    failed = True
    try:
        resume = None if done is None else checkpoint
        metrics = _fit_and_test(experiment, trainer, saver, resume, config.runtime.keep_checkpoint)
        failed = False
    finally:
        if wandb:
            wandb.experiment.finish(exit_code=int(failed))
    if not config.runtime.keep_checkpoint and trainer.is_global_zero:
        shutil.rmtree(checkpoint.parent, ignore_errors=True)
    return last_values(history.path) | metrics


def evaluate_checkpoint(
    build: Callable[[Any], Experiment], config: Any, checkpoint: Path, folder: Path
) -> dict[str, float]:
    """Test metrics of a saved checkpoint; loaded with `weights_only=True`, nothing is unpickled.

    Raises:
        UserError: the file is missing, truncated or holds another model.
    """
    _quieten()
    if not checkpoint.is_file():
        raise UserError(f"expected a checkpoint file, found nothing at {checkpoint}.")
    seed_run(config.seed)
    experiment = build(config)
    trainer = build_trainer(config, folder, experiment.callbacks, [])
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many classes for a damaged file
        raise UserError(
            f"{checkpoint} cannot be read as a checkpoint ({type(error).__name__}): it is truncated or of "
            "another kind. Use a file that train.py or reproduce.py wrote, or train again."
        ) from None
    try:
        trainer.test(
            experiment.module,
            datamodule=experiment.datamodule,
            ckpt_path=checkpoint,
            weights_only=True,
            verbose=False,
        )
    except (RuntimeError, KeyError) as error:
        if "state_dict" not in str(error):
            raise
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"{checkpoint} does not fit this config: {reason}") from None
    return _scalars(trainer)


def _fit_and_test(
    experiment: Experiment, trainer: Trainer, saver: SaveAndStop, resume: Path | None, keep: bool
) -> dict[str, float]:
    module, datamodule = experiment.module, experiment.datamodule
    metrics: dict[str, float] = {}
    if experiment.fit:
        trainer.fit(module, datamodule=datamodule, ckpt_path=resume, weights_only=True)
        metrics |= _scalars(trainer)
        if keep or saver.seconds_since_save() > 60:  # killed while testing, it need not train again
            saver.save(trainer)
    if is_overridden("test_step", module):
        trainer.test(module, datamodule=datamodule, verbose=False, weights_only=True)
        metrics |= _scalars(trainer)
    return metrics


def _scalars(trainer: Trainer) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def _quieten() -> None:
    """Drop hints that say nothing to a person who runs a table of hundreds of short runs."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", ".*isinstance\\(treespec, LeafSpec\\).*")
    warnings.filterwarnings("ignore", ".*no `val_dataloader`.*|.*no `validation_step`.*")
