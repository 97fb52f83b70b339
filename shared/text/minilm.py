"""The MiniLM sentence encoder (BERT type, 6 blocks x 384, 22.7 million parameters)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import UserError

FILES = ("config.json", "model.safetensors", "tokenizer.json")


def load_encoder(folder: Path) -> nn.Module:
    """The Hugging Face `BertModel` in `folder`, float32, in evaluation mode; never asks the network.

    Raises:
        UserError: a file is absent.
    """
    _check(folder)
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    return BertModel.from_pretrained(folder, local_files_only=True, add_pooling_layer=False).eval()


def load_tokenizer(folder: Path) -> Any:
    """The word-piece tokenizer in `folder` (`transformers.BertTokenizerFast`)."""
    _check(folder)
    from transformers import BertTokenizerFast

    return BertTokenizerFast.from_pretrained(folder, local_files_only=True)


def attention_mask(mask: Tensor) -> Tensor:
    """`mask` (B, T), true at words, in the form that a block of the encoder takes: (B, 1, T, T)."""
    return mask[:, None, None, :].expand(-1, 1, mask.shape[1], -1)


def run_blocks(blocks: nn.ModuleList, hidden: Tensor, mask: Tensor) -> Tensor:
    """Send `hidden` (B, T, D) through consecutive blocks of the encoder; `mask` (B, T) is true at words."""
    allowed = attention_mask(mask)
    for block in blocks:
        hidden = block(hidden, allowed)
    return hidden


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of `hidden` (B, T, D) over the words of each sentence: (B, D)."""
    weight = mask.to(hidden.dtype)[..., None]
    return (hidden * weight).sum(1) / weight.sum(1)


@torch.inference_mode()
def embed(encoder: nn.Module, token_ids: Tensor, mask: Tensor, blocks: int) -> Tensor:
    """Activations (B, T, D) behind the embedding and the first `blocks` blocks."""
    hidden = encoder.embeddings(input_ids=token_ids)
    return run_blocks(encoder.encoder.layer[:blocks], hidden, mask)


def _check(folder: Path) -> None:
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise UserError(
            f"expected MiniLM's {', '.join(FILES)} in {folder}; {', '.join(absent)} not found. "
            "Fetch it with: python scripts/download_data.py minilm"
        )
