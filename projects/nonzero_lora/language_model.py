"""LoRA fine-tuning of a language model, started the paper's way; examined by its loss and its answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from projects.nonzero_lora import cached_blocks
from projects.nonzero_lora.adapters import attach
from projects.nonzero_lora.answers import RULES
from projects.nonzero_lora.data.language import (
    LanguageModelData,
    brown_chunks,
    chunk_data,
    text_data,
)
from projects.nonzero_lora.data.sources import source_of
from projects.nonzero_lora.data.tokens import IGNORED
from projects.nonzero_lora.generation import answer
from projects.nonzero_lora.heldout import HeldOutLoss
from projects.nonzero_lora.optimisation import configure
from projects.nonzero_lora.pretrained import load_model, load_tokenizer, location
from shared.data.catalogue import fetch
from shared.errors import UserError
from shared.training.experiment import Experiment


class LanguageModelLoRA(LightningModule):
    """A frozen language model whose LoRA factors train on next tokens.

    Test metrics: `test/loss` (nats a token) and `test/perplexity` on the held-out examples,
    `test/accuracy/<set>` and their mean `test/accuracy`, in percent. The answers are written to
    `artifacts/<set>.jsonl`.

    Checkpoints hold only what trains: frozen weights, reset included, follow from the config and the seed.
    """

    def __init__(self, config: Any, model: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.artifacts: Path | None = None
        self.model = model.train()
        attach(self.model, config.adapter, config.seed)
        for parameter in self.model.parameters():
            if parameter.requires_grad:  # in bfloat16 a small step would be lost in rounding
                parameter.data = parameter.data.float()

    def losses(self, batch: dict[str, Tensor]) -> Tensor:
        """Negative log likelihood (N) in nats of every labelled token of the batch."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        labels = batch["labels"]
        if self.model.config.is_encoder_decoder:
            before = self.model.prepare_decoder_input_ids_from_labels(labels=labels)
            logits = self.model(**inputs, decoder_input_ids=before, use_cache=False).logits
        else:
            logits, labels = self.model(**inputs, use_cache=False).logits[:, :-1], labels[:, 1:]
        counted = labels != IGNORED
        return cross_entropy(logits[counted].float(), labels[counted], reduction="none")

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        losses = self.losses(batch)
        loss = losses.sum() / max(
            1, len(losses)
        )  # a batch of prompts at the length limit has no response left
        self.log("train/loss", loss, batch_size=len(batch["labels"]))
        return loss

    def on_test_start(self) -> None:
        self.nll = torch.zeros(2, dtype=torch.float64, device=self.device)  # sum and count
        self.answers: dict[str, list[dict[str, Any]]] = {}

    def test_step(self, batch: dict[str, Any], index: int, dataloader_idx: int = 0) -> None:
        if "labels" in batch:
            losses = self.losses(batch)
            self.nll += torch.stack([losses.double().sum(), losses.new_tensor(len(losses)).double()])
            return
        outputs = answer(self.model, self.tokenizer, batch["prompts"], self.config.lm.max_new_tokens)
        for prompt, output, gold, rule in zip(
            batch["prompts"], outputs, batch["answers"], batch["rules"], strict=True
        ):
            self.answers.setdefault(batch["test"], []).append(
                {"prompt": prompt, "output": output, "answer": gold, "right": RULES[rule](output, gold)}
            )

    def on_test_epoch_end(self) -> None:
        total, count = self.all_gather(self.nll).reshape(-1, 2).sum(0).tolist()
        if count:
            loss = total / count
            self._log({"test/loss": loss, "test/perplexity": math.exp(min(loss, 700))})
        accuracies = []
        for test in self.config.lm.tests:
            rows = self.answers.get(test, [])
            own = torch.tensor([sum(row["right"] for row in rows), len(rows)], dtype=torch.float64)
            right, count = self.all_gather(own.to(self.device)).reshape(-1, 2).sum(0).tolist()
            accuracies.append(100 * right / max(1, count))
            self._log({f"test/accuracy/{test}": accuracies[-1]})
            self._write(test, rows)
        if accuracies:
            self._log({"test/accuracy": sum(accuracies) / len(accuracies)})

    def configure_optimizers(self) -> dict[str, Any]:
        return configure(self.model, self.config.optimizer, int(self.trainer.estimated_stepping_batches))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name in trained
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        frozen = {name: value for name, value in self.state_dict().items() if name not in trained}
        checkpoint["state_dict"] = frozen | checkpoint["state_dict"]

    def _log(self, metrics: dict[str, float]) -> None:
        # The values were summed over all processes already.
        self.log_dict(metrics, rank_zero_only=True)

    def _write(self, test: str, rows: list[dict[str, Any]]) -> None:
        if self.artifacts is None or not rows:
            return
        part = f".{self.global_rank}" if self.trainer.world_size > 1 else ""
        with (self.artifacts / f"{test}{part}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@torch.no_grad()
def heldout_loss(module: LanguageModelLoRA, data: LanguageModelData) -> float:
    """Mean loss a token over the held-out examples, without dropout; summed in float64."""
    training = module.model.training
    module.model.eval()
    total, count = 0.0, 0
    for batch in data.heldout_dataloader():
        losses = module.losses({name: value.to(module.device) for name, value in batch.items()})
        total, count = total + losses.double().sum().item(), count + len(losses)
    module.model.train(training)
    return total / max(1, count)


def build(config: Any) -> Experiment:
    """The experiment of the `lm` block: model, data, and the held-out loss over the first steps."""
    lm = config.lm
    if not lm.tests and not lm.heldout_examples:
        raise UserError("nothing would be examined: give lm.tests or lm.heldout_examples.")
    model, tokenizer = load_model(lm.model, lm.dtype), load_tokenizer(lm.model)
    if source_of(lm.data)[0] == "brown":
        data = _brown(config, model, tokenizer)
    elif lm.cached_blocks:
        raise UserError(f"lm.cached_blocks works with brown text only; set it to 0 for lm.data={lm.data}.")
    else:
        data = text_data(config, tokenizer, model.config.is_encoder_decoder)
    module = LanguageModelLoRA(config, model, tokenizer)
    if not len(data.heldout):
        return Experiment(module, data)
    return Experiment(module, data, [HeldOutLoss(lambda m: heldout_loss(m, data), list(lm.heldout_steps))])


def _brown(config: Any, model: nn.Module, tokenizer: Any) -> LanguageModelData:
    lm = config.lm
    if lm.tests:
        raise UserError(f"lm.data={lm.data} has no test sets, only a loss; found lm.tests={list(lm.tests)}.")
    ids = brown_chunks(config, fetch("brown"), tokenizer)
    if not lm.cached_blocks:
        return chunk_data(config, None, ids)
    cached_blocks.check(model, lm.cached_blocks)
    weights = Path(location(lm.model)) / "model.safetensors"
    hidden = tuple(cached_blocks.cached_output(model, weights, part, lm.cached_blocks) for part in ids)
    cached_blocks.drop_lower(model, lm.cached_blocks)
    return chunk_data(config, hidden, ids)
