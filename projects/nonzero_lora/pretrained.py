"""Language models and tokenizers by name: the embedded SmolLM2, a local folder, or a Hugging Face id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared.errors import UserError, suggest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def location(name: str) -> str:
    """Folder or Hugging Face id that `name` stands for; "smollm2" is converted into a folder when absent."""
    if name == "smollm2":
        from shared.text.smollm import smollm2

        return str(smollm2())
    folder = Path(name).expanduser()
    return str(folder) if folder.is_dir() else name


def load_model(name: str, dtype: str) -> nn.Module:
    """The causal or encoder-decoder model `name`, its weights in `dtype`; local files first, then the hub.

    Raises:
        UserError: an unknown dtype, or a model that is neither here nor to be had.
    """
    if dtype not in DTYPES:
        raise UserError(f"lm.dtype takes {', '.join(DTYPES)}; found '{dtype}'.{suggest(dtype, DTYPES)}")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = _local_first(AutoConfig.from_pretrained, name)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return _local_first(kind.from_pretrained, name, dtype=DTYPES[dtype])


def load_tokenizer(name: str) -> Any:
    """The tokenizer of the model `name`; one without a padding token pads with its end mark."""
    from transformers import AutoTokenizer

    tokenizer = _local_first(AutoTokenizer.from_pretrained, name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _local_first(load: Any, name: str, **settings: Any) -> Any:
    where = location(name)
    try:
        return load(where, local_files_only=True, **settings)
    except (OSError, ValueError) as error:
        if Path(where).is_dir():
            raise UserError(
                f"lm.model: {where} does not hold a whole model ({_first_line(error)})."
            ) from None
    try:
        return load(where, **settings)
    except (OSError, ValueError) as error:
        raise UserError(
            f"lm.model: '{name}' is neither a folder nor in the Hugging Face cache, and cannot be downloaded "
            f"({_first_line(error)}). Download it with: hf download {name} (a gated model needs its licence "
            "accepted and `hf auth login`), or give a local folder as lm.model=/path."
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
