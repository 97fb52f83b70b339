"""Greedy answers of a language model to a batch of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def answer(model: nn.Module, tokenizer: Any, prompts: Sequence[str], max_new_tokens: int) -> list[str]:
    """The greedy continuation of every prompt, without the prompt and without special tokens.

    Prompts of a decoder are padded on the left, so that each continuation starts right behind its prompt and
    is the one the prompt alone would get.

    Args:
        model: a Hugging Face causal or encoder-decoder model; its training mode is restored afterwards.
        max_new_tokens: where an answer without an end mark is cut.
    """
    device = next(model.parameters()).device
    seq2seq = model.config.is_encoder_decoder
    inputs = tokenizer(
        list(prompts), return_tensors="pt", padding=True, padding_side="right" if seq2seq else "left"
    ).to(device)
    training = model.training
    model.eval()
    try:
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            temperature=None,  # a model's own sampling defaults mean nothing here
            top_p=None,
            top_k=None,
            pad_token_id=tokenizer.pad_token_id,
        )
    finally:
        model.train(training)
    start = 0 if seq2seq else inputs["input_ids"].shape[1]
    return tokenizer.batch_decode(output[:, start:], skip_special_tokens=True)
