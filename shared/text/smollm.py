"""SmolLM2-135M as an ordinary Hugging Face folder, made once from the embedded GGUF file.

The embedded package holds 4-bit weights in llama.cpp's file format. Here they are dequantised to float32 and
written as safetensors with their config and tokenizer, so that `AutoModelForCausalLM.from_pretrained(folder)`
loads them in a second, without the slow GGUF path of the library.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from shared.errors import UserError
from shared.paths import cache_dir

if TYPE_CHECKING:
    from gguf import GGUFReader

LAYOUT = 1  # raise it when what is written changes, so that old folders are not taken for new ones
CONTROL = 3  # token type of special tokens in a GGUF file


@functools.cache
def smollm2() -> Path:
    """Folder with config, float32 weights (134,515,008 parameters) and tokenizer of SmolLM2-135M-Instruct.

    The first call takes about ten seconds and 540 MB of cache.

    Raises:
        UserError: the embedded package cannot be had.
    """
    from shared.data.catalogue import fetch

    source = fetch("smollm2")
    files = sorted(source.rglob("*.gguf")) if source.is_dir() else [source]
    if len(files) != 1:
        raise UserError(f"expected one .gguf file below {source}, found {len(files)}.")
    return converted(files[0])


def converted(gguf_file: Path) -> Path:
    """Folder of the conversion of `gguf_file`, keyed by its content; when absent, one process makes it."""
    with gguf_file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    parent = cache_dir() / "converted"
    folder = parent / f"{gguf_file.stem}-{digest}-{LAYOUT}"
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    with FileLock(parent / f"{folder.name}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="making.", dir=parent) as scratch:
                part = Path(scratch) / folder.name
                part.mkdir()
                convert(gguf_file, part)
                part.replace(folder)
    return folder


def convert(gguf_file: Path, folder: Path) -> None:
    """Write `config.json`, `model.safetensors` and the tokenizer of a LLaMA-type GGUF file into `folder`."""
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_file)
    config = _config(reader)
    arrays = {
        # dimensions of a GGUF file run from the fastest to the slowest
        tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(
            [int(size) for size in reversed(tensor.shape)]
        )
        for tensor in reader.tensors
    }
    weights = hf_weights(arrays, config["num_attention_heads"], config["num_key_value_heads"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _save_tokenizer(reader, folder)


def hf_weights(
    arrays: dict[str, np.ndarray], query_heads: int, key_value_heads: int
) -> dict[str, np.ndarray]:
    """Rename the tensors of a GGUF file to those of `LlamaForCausalLM` and reorder the rows of q and k."""
    outer = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    inner = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    heads = {"attn_q": query_heads, "attn_k": key_value_heads}
    weights = {}
    for name, array in arrays.items():
        if name in outer:
            weights[outer[name]] = array
            continue
        _, block, part, kind = name.split(".")  # blk.<block>.<part>.<weight or bias>
        if part in heads:
            array = half_layout(array, heads[part])
        weights[f"model.layers.{block}.{inner[part]}.{kind}"] = array
    return weights


def half_layout(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder q or k rows from interleaved rotary pairs to rotary halves.

    llama.cpp rotates the rows (0, 1), (2, 3), ... of a head together, Hugging Face (0, d/2), (1, d/2 + 1).

    Args:
        rows: (heads * d, n), interleaved.

    Returns:
        (heads * d, n): of every head first the even rows, then the odd ones.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _field(reader: GGUFReader, name: str) -> Any:
    return reader.fields[name].contents()


def _config(reader: GGUFReader) -> dict[str, Any]:
    """`config.json` of the LLaMA model in a GGUF file."""
    if (found := _field(reader, "general.architecture")) != "llama":
        raise UserError(f"expected a GGUF file of architecture llama, found {found}.")
    names = {tensor.name for tensor in reader.tensors}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": len(_field(reader, "tokenizer.ggml.tokens")),
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": _field(reader, "llama.attention.head_count"),
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": round(_field(reader, "llama.attention.layer_norm_rms_epsilon"), 12),
        "rope_parameters": {"rope_type": "default", "rope_theta": _field(reader, "llama.rope.freq_base")},
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
    }


def _save_tokenizer(reader: GGUFReader, folder: Path) -> None:
    """Write the byte-level BPE tokenizer of a GGUF file (digits are split one by one, as SmolLM2 does)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = _field(reader, "tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    role = {
        name: tokens[_field(reader, f"tokenizer.ggml.{key}_token_id")]
        for name, key in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")]
    }
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=_field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": token for name, token in role.items()},
    )
    if "tokenizer.chat_template" in reader.fields:
        fast.chat_template = _field(reader, "tokenizer.chat_template")
    fast.save_pretrained(folder)
